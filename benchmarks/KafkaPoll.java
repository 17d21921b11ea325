import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Produces records and polls them again. Each line of stdin names a topic to poll. */
public class KafkaPoll {
    private static long touched;

    public static void main(String[] arguments) throws Exception {
        String servers = arguments[0];
        long rows = Long.parseLong(arguments[1]);
        int batchBytes = Integer.parseInt(arguments[2]);
        produce(servers, "Plain", rows, batchBytes, false);
        produce(servers, "Headers", rows, batchBytes, true);
        System.out.println("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String topic = input.readLine(); topic != null; topic = input.readLine()) {
            System.out.println(poll(servers, topic, rows));
        }
        System.err.println(touched);
    }

    private static void produce(
            String servers, String topic, long rows, int batchBytes, boolean hasHeaders) {
        Map<String, Object> settings =
            Map.of("bootstrap.servers", servers, "linger.ms", 20, "batch.size", batchBytes);
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (var producer = new KafkaProducer<byte[], byte[]>(settings, bytes, bytes)) {
            for (long row = 0; row < rows; row++) {
                byte[] key = String.format("%010d", row).getBytes(StandardCharsets.UTF_8);
                byte[] value = new byte[200];
                for (int at = 0; at < value.length; at++) {
                    value[at] = (byte) (97 + (row + at) % 8);
                }
                var record = new ProducerRecord<byte[], byte[]>(topic, 0, key, value);
                if (hasHeaders) {
                    record.headers().add("region", new byte[] {69, 85});
                    record.headers().add("trace", "0af7651916cd43dd".getBytes());
                    record.headers().add("kind", "paid".getBytes());
                }
                producer.send(record);
            }
        }
    }

    /** Returns the CPU time of this thread, which does all of the client's work, in ns. */
    private static long poll(String servers, String topic, long rows) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", servers, "max.poll.records", 5000, "enable.auto.commit", false,
            "fetch.max.bytes", 67108864, "max.partition.fetch.bytes", 8388608);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        var threads = ManagementFactory.getThreadMXBean();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, bytes, bytes)) {
            List<TopicPartition> partitions = List.of(new TopicPartition(topic, 0));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            consumer.position(partitions.get(0));
            long start = threads.getCurrentThreadCpuTime();
            for (long seen = 0; seen < rows; ) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    touched += record.key()[0] + record.value()[199] + record.timestamp();
                    for (Header header : record.headers()) {
                        touched += header.key().length() + header.value()[0];
                    }
                    seen++;
                }
            }
            return threads.getCurrentThreadCpuTime() - start;
        }
    }
}
