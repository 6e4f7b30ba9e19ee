import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.Collection;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import org.apache.avro.Conversions;
import org.apache.avro.Schema;
import org.apache.avro.data.TimeConversions;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericEnumSymbol;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;

/** Reads records with Java's Avro, and writes them again: integration/java_avro.py says how to ask. Janino compiles it. */
public class AvroInJava {
    private static final GenericData DATA = new GenericData();

    public static void main(String[] arguments) throws Exception {
        DATA.addLogicalTypeConversion(new Conversions.DecimalConversion());
        DATA.addLogicalTypeConversion(new TimeConversions.DateConversion());
        DATA.addLogicalTypeConversion(new TimeConversions.TimestampMillisConversion());
        DATA.addLogicalTypeConversion(new TimeConversions.TimestampMicrosConversion());
        DATA.addLogicalTypeConversion(new TimeConversions.LocalTimestampMillisConversion());
        DATA.addLogicalTypeConversion(new TimeConversions.LocalTimestampMicrosConversion());
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in, 1 << 16));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out, 1 << 16));
        int count;
        while ((count = in.readInt()) >= 0) {
            Schema writer = new Schema.Parser().parse(new String(bytes(in), StandardCharsets.UTF_8));
            Schema reader = new Schema.Parser().parse(new String(bytes(in), StandardCharsets.UTF_8));
            byte[][] records = new byte[count][];
            for (int at = 0; at < count; at++) {
                records[at] = bytes(in);
            }
            for (int at = 0; at < count; at++) {
                String said;
                byte[] again = new byte[0];
                try {
                    ByteArrayInputStream left = new ByteArrayInputStream(records[at]);
                    BinaryDecoder decoder = DecoderFactory.get().directBinaryDecoder(left, null);
                    Object found = new GenericDatumReader(writer, reader, DATA).read(null, decoder);
                    StringBuilder text = new StringBuilder();
                    show(found, text);
                    said = left.available() > 0 ? "! bytes are left" : text.toString();
                    ByteArrayOutputStream stream = new ByteArrayOutputStream();
                    BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(stream, null);
                    new GenericDatumWriter(reader, DATA).write(found, encoder);
                    encoder.flush();
                    again = stream.toByteArray();
                } catch (Exception problem) {
                    said = "! " + problem;
                }
                put(out, said.getBytes(StandardCharsets.UTF_8));
                put(out, again);
            }
            out.flush();
        }
    }

    private static byte[] bytes(DataInputStream in) throws Exception {
        byte[] found = new byte[in.readInt()];
        in.readFully(found);
        return found;
    }

    private static void put(DataOutputStream out, byte[] data) throws Exception {
        out.writeInt(data.length);
        out.write(data);
    }

    private static void hexadecimal(byte[] data, StringBuilder text) {
        for (int at = 0; at < data.length; at++) {
            text.append(Character.forDigit((data[at] >> 4) & 15, 16)).append(Character.forDigit(data[at] & 15, 16));
        }
    }

    private static long micros(long seconds, int nanos) {
        return seconds < 0 ? (seconds + 1) * 1000000L + (nanos / 1000 - 1000000L) : seconds * 1000000L + nanos / 1000;
    }

    private static void show(Object value, StringBuilder text) {
        if (value instanceof Float || value instanceof Double) {
            text.append("f").append(Long.toHexString(Double.doubleToLongBits(((Number) value).doubleValue())));
        } else if (value instanceof BigDecimal) {
            text.append("d").append(((BigDecimal) value).toPlainString());
        } else if (value instanceof LocalDate) {
            text.append(((LocalDate) value).toEpochDay());
        } else if (value instanceof Instant) {
            text.append(micros(((Instant) value).getEpochSecond(), ((Instant) value).getNano()));
        } else if (value instanceof LocalDateTime) {
            text.append(micros(((LocalDateTime) value).toEpochSecond(ZoneOffset.UTC), ((LocalDateTime) value).getNano()));
        } else if (value instanceof GenericEnumSymbol || value instanceof CharSequence) {
            text.append("s");
            hexadecimal(value.toString().getBytes(StandardCharsets.UTF_8), text);
        } else if (value instanceof GenericFixed) {
            text.append("b");
            hexadecimal(((GenericFixed) value).bytes(), text);
        } else if (value instanceof ByteBuffer) {
            text.append("b");
            byte[] data = new byte[((ByteBuffer) value).remaining()];
            ByteBuffer copy = (ByteBuffer) ((ByteBuffer) value).duplicate();
            copy.get(data);
            hexadecimal(data, text);
        } else if (value instanceof IndexedRecord) {
            IndexedRecord record = (IndexedRecord) value;
            text.append("{");
            for (int at = 0; at < record.getSchema().getFields().size(); at++) {
                text.append(((Schema.Field) record.getSchema().getFields().get(at)).name()).append("=");
                show(record.get(at), text);
                text.append(",");
            }
            text.append("}");
        } else if (value instanceof Collection) {
            text.append("[");
            for (Iterator each = ((Collection) value).iterator(); each.hasNext();) {
                show(each.next(), text);
                text.append(",");
            }
            text.append("]");
        } else if (value instanceof Map) {
            TreeMap sorted = new TreeMap();
            for (Iterator each = ((Map) value).entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                sorted.put(entry.getKey().toString(), entry.getValue());
            }
            text.append("[");
            for (Iterator each = sorted.entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                text.append((String) entry.getKey()).append("=");
                show(entry.getValue(), text);
                text.append(",");
            }
            text.append("]");
        } else {
            text.append(value); // null, boolean, int, long
        }
    }
}
