// Prints the rows of a topic as a Kafka client for Go returns them. python_clients.py says how.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
)

const idle = 3 * time.Second

func main() {
	client, servers, topic, isolation := os.Args[1], strings.Split(os.Args[2], ","), os.Args[3], os.Args[4]
	programs := map[string]func([]string, string, string, string) error{
		"franz-go": franzGo, "kafka-go": kafkaGo, "sarama": saramaClient,
	}
	if err := programs[client](servers, topic, client+"-"+isolation, isolation); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func show(partition int32, offset int64, value []byte) {
	fmt.Printf("%d\t%d\t%s\n", partition, offset, value)
}

func franzGo(servers []string, topic, group, isolation string) error {
	options := []kgo.Opt{
		kgo.SeedBrokers(servers...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(500 * time.Millisecond),
	}
	switch isolation {
	case "read_committed":
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	case "read_uncommitted":
		options = append(options, kgo.FetchIsolationLevel(kgo.ReadUncommitted()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	wait := 4 * idle
	for {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		fetches := client.PollFetches(ctx)
		cancel()
		if err := fetches.Err(); errors.Is(err, context.DeadlineExceeded) {
			return client.CommitUncommittedOffsets(context.Background())
		} else if err != nil {
			return err
		}
		fetches.EachRecord(func(row *kgo.Record) {
			show(row.Partition, row.Offset, row.Value)
			wait = idle
		})
	}
}

func kafkaGo(servers []string, topic, group, isolation string) error {
	config := kafka.ReaderConfig{
		Brokers: servers, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset, MaxWait: 500 * time.Millisecond,
	}
	switch isolation {
	case "read_committed":
		config.IsolationLevel = kafka.ReadCommitted
	case "read_uncommitted":
		config.IsolationLevel = kafka.ReadUncommitted
	}
	reader := kafka.NewReader(config)
	defer reader.Close()
	last := map[int]kafka.Message{}
	wait := 4 * idle
	for {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		row, err := reader.FetchMessage(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			break
		} else if err != nil {
			return err
		}
		show(int32(row.Partition), row.Offset, row.Value)
		last[row.Partition] = row
		wait = idle
	}
	for _, row := range last {
		if err := reader.CommitMessages(context.Background(), row); err != nil {
			return err
		}
	}
	return nil
}

// A handler of sarama's, which ends its context if no row has arrived for some time.
type handler struct {
	lock  sync.Mutex
	timer *time.Timer
}

func (h *handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for row := range claim.Messages() {
		h.lock.Lock()
		show(row.Partition, row.Offset, row.Value)
		h.timer.Reset(idle)
		h.lock.Unlock()
		session.MarkMessage(row, "")
	}
	return nil
}

func saramaClient(servers []string, topic, group, isolation string) error {
	config := sarama.NewConfig()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	switch isolation {
	case "read_committed":
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	case "read_uncommitted":
		config.Consumer.IsolationLevel = sarama.ReadUncommitted
	}
	client, err := sarama.NewConsumerGroup(servers, group, config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	err = client.Consume(ctx, []string{topic}, &handler{timer: time.AfterFunc(4*idle, cancel)})
	return errors.Join(err, client.Close()) // commits what was marked
}
