import java.util.Arrays;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Sends one message after the other, at a fixed rate; arguments are name server, topic, messages a second, seconds. */
public class RocketSendOne {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-one");
        producer.setNamesrvAddr(args[0]);
        producer.start();
        int rate = Integer.parseInt(args[2]), count = rate * Integer.parseInt(args[3]);
        byte[] body = new byte[1000];
        for (int i = 0; i < 2000; i++) {
            producer.send(new Message(args[1], "tag", body));
        }
        System.out.println("warm");
        long[] times = new long[count];
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            // A message that is late because of the one before has waited too.
            long due = start + i * 1_000_000_000L / rate;
            while (System.nanoTime() < due) {
                Thread.sleep(0, 200_000);
            }
            producer.send(new Message(args[1], "tag", body));
            times[i] = System.nanoTime() - due;
        }
        Arrays.sort(times);
        for (double quantile : new double[] {0.5, 0.9, 0.99, 0.999}) {
            System.out.printf("%s %.3f%n", quantile, times[(int) (quantile * (count - 1))] / 1e6);
        }
        producer.shutdown();
        System.exit(0);
    }
}
