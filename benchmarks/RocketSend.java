import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends batches, a thread for each queue: arguments are name server, topic, rows, batch, body bytes, passes. */
public class RocketSend {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        int rows = Integer.parseInt(args[2]), batch = Integer.parseInt(args[3]);
        byte[] body = new byte[Integer.parseInt(args[4])];
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        for (int pass = 0; pass < Integer.parseInt(args[5]); pass++) {
            List<MessageQueue> queues = producer.fetchPublishMessageQueues(args[1]);
            AtomicLong count = new AtomicLong();
            List<Thread> threads = new ArrayList<>();
            long start = System.nanoTime(), cpu = system.getProcessCpuTime();
            for (MessageQueue queue : queues) {
                Thread thread = new Thread(() -> {
                    try {
                        for (int sent = 0; sent < rows / queues.size(); sent += batch) {
                            List<Message> messages = new ArrayList<>(batch);
                            for (int i = 0; i < batch; i++) {
                                messages.add(new Message(args[1], "tag", body));
                            }
                            producer.send(messages, queue);
                            count.addAndGet(batch);
                        }
                    } catch (Exception err) {
                        throw new RuntimeException(err);
                    }
                });
                thread.start();
                threads.add(thread);
            }
            for (Thread thread : threads) {
                thread.join();
            }
            double seconds = (System.nanoTime() - start) / 1e9;
            double cpuSeconds = (system.getProcessCpuTime() - cpu) / 1e9;
            System.out.printf("pass %d 0 %.3f %.3f%n", count.get(), seconds, cpuSeconds);
        }
        producer.shutdown();
        System.exit(0);
    }
}
