import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Writes topics for a test, and prints what consumers get of them. */
public class KafkaJudge {
    private static final long TIME = 1_700_000_000_000L;

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "write" -> write(arguments[1]);
            case "fill" -> fill(arguments[1], arguments[2], Integer.parseInt(arguments[3]));
            case "topic" -> topic(arguments[1], arguments[2], Integer.parseInt(arguments[3]));
            default -> {
                for (int at = 2; at < arguments.length; at++) {
                    read(arguments[1], arguments[at], "read_uncommitted");
                    read(arguments[1], arguments[at], "read_committed");
                }
            }
        }
        System.exit(0);
    }

    private static void topic(String servers, String name, int partitions) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1))).all().get();
        }
    }

    /** Makes a topic, in place of one that has its name, and sends records to it. */
    private static void fill(String servers, String name, int records) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            if (admin.listTopics().names().get().contains(name)) {
                admin.deleteTopics(List.of(name)).all().get();
            }
            admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get();
        }
        var plain = producer(servers, null);
        for (int row = 0; row < records; row++) {
            send(plain, name, 0, null, "one of " + records, row);
        }
        plain.flush();
    }

    private static void write(String servers) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
            var compacted = new NewTopic("Compacted", 1, (short) 1).configs(Map.of(
                "cleanup.policy", "compact", "segment.ms", "1000", "min.cleanable.dirty.ratio", "0.01",
                "min.compaction.lag.ms", "0"));
            admin.createTopics(List.of(new NewTopic("Mixed", 2, (short) 1), compacted)).all().get();
        }
        var plain = producer(servers, null);
        for (int row = 0; row < 200; row++) {
            send(plain, "Mixed", row % 2, "k" + row, row % 9 == 0 ? null : "value " + row, row);
        }
        plain.flush();
        for (String id : List.of("committed", "aborted", "committed-2", "open")) {
            var transactional = producer(servers, id);
            transactional.initTransactions();
            transactional.beginTransaction();
            for (int row = 0; row < 20; row++) {
                send(transactional, "Mixed", row % 2, id, id + row, 200 + row);
                send(plain, "Mixed", row % 2, null, "between " + row, 300 + row);
            }
            plain.flush();
            transactional.flush();
            if (id.startsWith("committed")) {
                transactional.commitTransaction();
            } else if (id.equals("aborted")) {
                transactional.abortTransaction();
            }
        }
        // time passes between the messages, so that segments are rolled and can be compacted
        for (int row = 0; row < 200; row++) {
            send(plain, "Compacted", 0, "key" + row % 7, row % 50 == 49 ? null : "v" + row, row * 100L);
            plain.flush();
        }
    }

    private static KafkaProducer<byte[], byte[]> producer(String servers, String id) {
        Map<String, Object> settings = new HashMap<>(Map.of(
            "bootstrap.servers", servers, "compression.type", id == null ? "none" : "lz4"));
        if (id != null) {
            settings.put("transactional.id", id);
        }
        var bytes = new ByteArraySerializer();
        return new KafkaProducer<>(settings, bytes, bytes);
    }

    private static void send(
            KafkaProducer<byte[], byte[]> producer, String topic, int partition, String key,
            String value, long time) {
        var record = new ProducerRecord<byte[], byte[]>(
            topic, partition, TIME + time, key == null ? null : key.getBytes(),
            value == null ? null : value.getBytes());
        if (time % 3 == 0) {
            record.headers().add("h", ("v" + time).getBytes()).add("h", null).add("", new byte[0]);
        }
        producer.send(record);
    }

    private static void read(String servers, String topic, String level) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", servers, "isolation.level", level, "enable.auto.commit", false);
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<byte[], byte[]>(settings, bytes, bytes)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (var info : consumer.partitionsFor(topic)) {
                partitions.add(new TopicPartition(topic, info.partition()));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (ends.entrySet().stream().anyMatch(e -> consumer.position(e.getKey()) < e.getValue())) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    print(level, record);
                }
            }
            ends.forEach((key, end) ->
                System.out.println(level + "\tend\t" + topic + "\t" + key.partition() + "\t" + end));
        }
    }

    private static void print(String level, ConsumerRecord<byte[], byte[]> record) {
        StringBuilder line = new StringBuilder(level + "\trecord\t" + record.topic());
        line.append("\t").append(record.partition()).append("\t").append(record.offset());
        line.append("\t").append(record.timestamp()).append("\t").append(text(record.key()));
        line.append("\t").append(text(record.value()));
        for (Header header : record.headers()) {
            line.append("\t").append(header.key()).append("=").append(text(header.value()));
        }
        System.out.println(line);
    }

    private static String text(byte[] content) {
        return content == null ? "null" : Base64.getEncoder().encodeToString(content);
    }
}
