// Prints the rows of a topic as KafkaJS returns them. python_clients.py says how.
const { Kafka, logLevel } = require("kafkajs");

const SECONDS = 3;
const [client, servers, topic, isolation] = process.argv.slice(2);
const chosen = isolation === "default" ? {} : { readUncommitted: isolation === "read_uncommitted" };

async function main() {
  const kafka = new Kafka({ brokers: servers.split(","), logLevel: logLevel.ERROR });
  const consumer = kafka.consumer({ groupId: `${client}-${isolation}`, maxWaitTimeInMs: 500, ...chosen });
  let last = Date.now() + 3000 * SECONDS;
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ partition, message }) => {
      console.log(`${partition}\t${message.offset}\t${message.value}`);
      last = Date.now();
    },
  });
  while (Date.now() < last + 1000 * SECONDS) {
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  await consumer.disconnect(); // commits
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
