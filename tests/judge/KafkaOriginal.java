package org.apache.kafka.clients.consumer.internals; // what a consumer does with fetched bytes is private to it

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.*;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.zip.CRC32;
import kafka.log.LogManager;
import kafka.server.KafkaConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.*;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.FileLock;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.log.*;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;
import org.slf4j.helpers.NOPLogger;
import scala.Function1;
import scala.collection.immutable.Map$;
import scala.jdk.javaapi.CollectionConverters;

/** Loads log directories as a broker does that starts, and says what consumers get: a line of JSON in, one out. */
public class KafkaOriginal {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int FETCHED = 64 << 10; // bytes of a fetch, unless a batch is larger
    private static final int MOST_SEEKS = 2000; // past damage in a row, an offset at a time
    private static final Metrics METRICS = new Metrics();
    private static final FetchMetricsManager FETCHES = new FetchMetricsManager(METRICS, new FetchMetricsRegistry());
    // Runs nothing in the background, so that a log stays as it was loaded.
    private static final Scheduler NEVER = (Scheduler) Proxy.newProxyInstance(
        KafkaOriginal.class.getClassLoader(), new Class<?>[] {Scheduler.class}, (proxy, method, arguments) -> null);

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
    }

    private static Map<String, Object> answer(JsonNode asked) throws Exception {
        String root = asked.get("root").asText();
        var settings = new Properties();
        settings.putAll(Map.of(
            "process.roles", "broker", "node.id", "1", "controller.quorum.voters", "9@localhost:9", "log.dirs", root,
            "controller.listener.names", "C", "listeners", "P://localhost:0", "inter.broker.listener.name", "P",
            "listener.security.protocol.map", "C:PLAINTEXT,P:PLAINTEXT"));
        var failures = new LogDirFailureChannel(10);
        var manager = LogManager.apply(
            KafkaConfig.fromProps(settings, false), CollectionConverters.asScala(List.<String>of()).toSeq(),
            resource -> new Properties(), NEVER, Time.SYSTEM, new BrokerTopicStats(), failures);
        Function1<UnifiedLog, Object> isStray = log -> {
            JsonNode id = asked.get("ids").get(log.topicPartition().topic());
            return id != null && log.topicId().isEmpty(); // which ids the cluster knows, no file here says
        };
        String refusal = null;
        try {
            manager.loadLogs(manager.initialDefaultConfig(), Map$.MODULE$.empty(), isStray);
            for (String name : List.of("replication-offset-checkpoint", "cleaner-offset-checkpoint")) {
                new OffsetCheckpointFile(new File(root, name), failures).read(); // as other parts of a broker do
            }
            refusal = failures.hasOfflineLogDir(root) ? "the log directory is offline" : null;
        } catch (Throwable err) {
            refusal = err.toString();
        }
        while (Thread.getAllStackTraces().keySet().stream().anyMatch(one -> one.getName().startsWith("log-recovery-"))) {
            Thread.sleep(5); // another thread had the error
        }
        Map<String, Object> partitions = new TreeMap<>();
        for (UnifiedLog log : CollectionConverters.asJava(manager.allLogs())) {
            if (!log.isFuture() && !failures.hasOfflineLogDir(root)) {
                String name = log.dir().getName();
                partitions.put(name, partition(log, asked.get("times").path(name)));
            }
            log.removeLogMetrics();
            log.closeHandlers();
        }
        for (FileLock lock : CollectionConverters.asJava(manager.dirLocks())) {
            lock.destroy();
        }
        return Map.of("starts", refusal == null, "partitions", partitions, "refusal", String.valueOf(refusal));
    }

    private static Map<String, Object> partition(UnifiedLog log, JsonNode times) throws Exception {
        log.updateHighWatermark(log.logEndOffset()); // as a leader without followers does
        Map<String, Object> found = new TreeMap<>(Map.of(
            "start", log.logStartOffset(), "end", log.logEndOffset(), "stable", log.lastStableOffset()));
        for (IsolationLevel level : IsolationLevel.values()) {
            found.put(level.toString(), new Reader(log, level).read());
        }
        Map<String, Object> offsets = new TreeMap<>();
        for (JsonNode time : times) {
            Object offset;
            try {
                var result = log.fetchOffsetByTimestamp(time.asLong(), Optional.empty()).timestampAndOffsetOpt();
                offset = result.isPresent() ? result.get().offset : null;
            } catch (Exception err) {
                offset = err.toString();
            }
            offsets.put(time.asText(), offset);
        }
        found.put("times", offsets);
        return found;
    }

    /** Reads a log as a consumer that seeks past damage. */
    private static class Reader {
        private final UnifiedLog log;
        private final IsolationLevel level;
        private final SubscriptionState position =
            new SubscriptionState(new LogContext(), AutoOffsetResetStrategy.EARLIEST);
        private final List<Object> records = new ArrayList<>();
        private final List<Object> errors = new ArrayList<>();
        private long next;
        private int seeks = 0;

        Reader(UnifiedLog log, IsolationLevel level) {
            this.log = log;
            this.level = level;
            this.next = log.logStartOffset();
            position.assignFromUser(Set.of(log.topicPartition()));
        }

        Map<String, Object> read() {
            long end = level == IsolationLevel.READ_COMMITTED ? log.lastStableOffset() : log.logEndOffset();
            while (next < end) {
                long before = next;
                try {
                    fetch();
                } catch (Exception err) {
                    if (seeks++ == 0) {
                        errors.add(List.of(next, String.valueOf(err.getCause() == null ? err : err.getCause())));
                    }
                    next++;
                }
                if (next == before || seeks >= MOST_SEEKS) { // nothing is left of this segment
                    next = log.logSegments().stream().mapToLong(LogSegment::baseOffset)
                        .filter(base -> base > before).min().orElse(end);
                }
            }
            return Map.of("records", records, "errors", errors);
        }

        private void fetch() throws Exception {
            boolean isCommitted = level == IsolationLevel.READ_COMMITTED;
            var isolation = isCommitted ? FetchIsolation.TXN_COMMITTED : FetchIsolation.HIGH_WATERMARK;
            var info = log.read(next, FETCHED, isolation, true);
            Records fetched = info.records;
            if (fetched instanceof FileRecords file) {
                var buffer = ByteBuffer.allocate(file.sizeInBytes());
                file.readInto(buffer, 0);
                fetched = MemoryRecords.readableRecords(buffer);
            }
            var data = new FetchResponseData.PartitionData()
                .setRecords(fetched).setAbortedTransactions(info.abortedTransactions.orElse(null));
            var metrics = new FetchMetricsAggregator(FETCHES, Set.of(log.topicPartition()));
            var fetch = new CompletedFetch(
                NOPLogger.NOP_LOGGER, position, BufferSupplier.NO_CACHING, log.topicPartition(), data, metrics, next);
            var config = new FetchConfig(1, FETCHED, 0, FETCHED, 1, true, "", level);
            var bytes = new Deserializers<>(new ByteArrayDeserializer(), new ByteArrayDeserializer(), METRICS);
            while (!fetch.isConsumed()) {
                try {
                    for (ConsumerRecord<byte[], byte[]> record : fetch.fetchRecords(config, bytes, 1)) {
                        records.add(List.of(record.offset(), crc(record)));
                        seeks = 0;
                    }
                } finally {
                    next = Math.max(next, fetch.nextFetchOffset());
                }
            }
        }

        private static long crc(ConsumerRecord<byte[], byte[]> record) {
            var crc = new CRC32();
            crc.update(ByteBuffer.allocate(8).putLong(record.timestamp()).flip());
            add(crc, record.key());
            add(crc, record.value());
            record.headers().forEach(header -> {
                add(crc, header.key().getBytes(StandardCharsets.UTF_8));
                add(crc, header.value());
            });
            return crc.getValue();
        }

        private static void add(CRC32 crc, byte[] content) {
            crc.update(ByteBuffer.allocate(4).putInt(content == null ? -1 : content.length).flip());
            crc.update(content == null ? new byte[0] : content);
        }
    }
}
