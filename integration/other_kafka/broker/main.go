// A broker that is not Apache Kafka's: franz-go's kfake. Arguments: its folder, its port, and the release whose requests it has.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kversion"
)

func main() {
	port, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	options := []kfake.Opt{kfake.NumBrokers(1), kfake.Ports(port), kfake.DataDir(os.Args[1]), kfake.SyncWrites()}
	if len(os.Args) > 3 {
		options = append(options, kfake.MaxVersions(kversion.FromString(os.Args[3])))
	}
	cluster, err := kfake.NewCluster(options...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	<-ended
	cluster.Close()
}
