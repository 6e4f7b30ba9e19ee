import java.io.BufferedWriter;
import java.io.OutputStreamWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/** Prints partition, offset and value of all rows that Java's consumer sees, `read_committed`. Janino compiles it. */
public class ReadCommitted {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        KafkaConsumer consumer = new KafkaConsumer(settings);
        BufferedWriter out = new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
        List places = new ArrayList();
        Iterator infos = consumer.partitionsFor(arguments[1]).iterator();
        while (infos.hasNext()) {
            PartitionInfo info = (PartitionInfo) infos.next();
            places.add(new TopicPartition(info.topic(), info.partition()));
        }
        consumer.assign(places);
        consumer.seekToBeginning(places);
        Map ends = consumer.endOffsets(places);
        boolean whole = false;
        while (!whole) {
            Iterator records = consumer.poll(Duration.ofMillis(200)).iterator();
            while (records.hasNext()) {
                ConsumerRecord record = (ConsumerRecord) records.next();
                out.write(record.partition() + " " + record.offset() + " " + new String((byte[]) record.value(), StandardCharsets.UTF_8));
                out.newLine();
            }
            whole = true;
            Iterator each = places.iterator();
            while (each.hasNext()) {
                TopicPartition place = (TopicPartition) each.next();
                if (consumer.position(place) < ((Long) ends.get(place)).longValue()) whole = false;
            }
        }
        out.flush();
        System.exit(0);
    }
}
