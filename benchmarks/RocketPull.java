import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Pulls all messages of a topic, a thread for each queue: arguments are name server, topic, passes. */
public class RocketPull {
    public static void main(String[] args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("TOOLS_CONSUMER");
        consumer.setNamesrvAddr(args[0]);
        consumer.start();
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        for (int pass = 0; pass < Integer.parseInt(args[2]); pass++) {
            AtomicLong count = new AtomicLong(), bytes = new AtomicLong();
            List<Thread> threads = new ArrayList<>();
            long start = System.nanoTime(), cpu = system.getProcessCpuTime();
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(args[1])) {
                Thread thread = new Thread(() -> {
                    try {
                        long offset = consumer.minOffset(queue), end = consumer.maxOffset(queue);
                        while (offset < end) {
                            PullResult result = consumer.pull(queue, "*", offset, 32);
                            if (result.getPullStatus() == PullStatus.FOUND) {
                                for (MessageExt message : result.getMsgFoundList()) {
                                    bytes.addAndGet(message.getBody().length);
                                }
                                count.addAndGet(result.getMsgFoundList().size());
                            }
                            offset = result.getNextBeginOffset();
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
            System.out.printf("pass %d %d %.3f %.3f%n", count.get(), bytes.get(), seconds, cpuSeconds);
        }
        consumer.shutdown();
        System.exit(0);
    }
}
