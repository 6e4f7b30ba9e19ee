import java.time.Duration;
import java.util.Collections;
import java.util.Iterator;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Prints the rows of a topic as Java's client returns them. python_clients.py says how; Janino compiles this file. */
public class ReadTopic {
    private static final int SECONDS = 3;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[1]);
        settings.put("group.id", arguments[0] + "-" + arguments[3]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        if (!arguments[3].equals("default")) {
            settings.put("isolation.level", arguments[3]);
        }
        KafkaConsumer consumer = new KafkaConsumer(settings);
        consumer.subscribe(Collections.singleton(arguments[2]));
        long last = System.currentTimeMillis() + 3000L * SECONDS;
        while (System.currentTimeMillis() < last + 1000L * SECONDS) {
            Iterator found = consumer.poll(Duration.ofMillis(100)).iterator();
            while (found.hasNext()) {
                ConsumerRecord row = (ConsumerRecord) found.next();
                System.out.println(row.partition() + "\t" + row.offset() + "\t" + row.value());
                last = System.currentTimeMillis();
            }
        }
        consumer.commitSync();
        consumer.close();
    }
}
