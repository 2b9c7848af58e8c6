package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/limpet-sh/limpet/subjects"
)

// StreamOptions are the settings of an installation's streams.
type StreamOptions struct {
	// Replicas of each stream: 1 (default), 3 or 5. More than one needs a cluster.
	Replicas int
	// Memory keeps all streams in memory; they end with the server.
	Memory bool
	// OutputBytes bounds the OUTPUT stream, the oldest go first; default 4 GiB, in memory 128 MiB.
	OutputBytes int64
	// EventsBytes bounds the EVENTS stream, the oldest go first; default 1 GiB, in memory 64 MiB.
	EventsBytes int64
	// OutputAge and EventsAge bound how long a message is kept; default 7 days each.
	OutputAge, EventsAge time.Duration
}

const week = 7 * 24 * time.Hour

func (o *StreamOptions) validate() error {
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.Replicas < 1 || o.Replicas > 5 || o.Replicas%2 == 0 {
		//lint:ignore ST1005 it begins with the name of a field
		return fmt.Errorf("Replicas: %d is not 1, 3 or 5", o.Replicas)
	}
	file, memory := int64(4<<30), int64(128<<20)
	for _, b := range []*int64{&o.OutputBytes, &o.EventsBytes} {
		switch {
		case *b < 0:
			return errors.New("OutputBytes and EventsBytes must not be negative")
		case *b == 0 && o.Memory:
			*b = memory
		case *b == 0:
			*b = file
		}
		file, memory = 1<<30, 64<<20
	}
	for _, d := range []*time.Duration{&o.OutputAge, &o.EventsAge} {
		if *d == 0 {
			*d = week
		}
		if *d < time.Second {
			return errors.New("OutputAge and EventsAge must be at least 1 s")
		}
	}
	return nil
}

// EnsureStreams makes the streams of the installation, or brings them to these options.
// Any number may do so at once. It needs the provisioner's permissions.
func (c *Conn) EnsureStreams(ctx context.Context, opts StreamOptions) error {
	if err := opts.validate(); err != nil {
		return fmt.Errorf("bus: streams: %w", err)
	}
	for _, cfg := range streamConfigs(c.cfg.Root, opts) {
		call, end := c.failFast(ctx, cfg.Name)
		_, err := c.js.CreateOrUpdateStream(call, cfg)
		if err != nil {
			err = fmt.Errorf("bus: stream %s: %w", cfg.Name, callError(call, err))
		}
		end()
		if err != nil {
			return err
		}
	}
	return nil
}

func streamConfigs(r subjects.Root, o StreamOptions) []jetstream.StreamConfig {
	storage := jetstream.FileStorage
	if o.Memory {
		storage = jetstream.MemoryStorage
	}
	base := func(name, subject string) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name: r.Stream(name), Subjects: []string{subject}, Storage: storage, Replicas: o.Replicas,
			Discard: jetstream.DiscardOld, MaxConsumers: -1,
			// Nothing of ours sends a Nats-Msg-Id; the window cannot be 0.
			Duplicates: 100 * time.Millisecond,
		}
	}
	// Records are compared and set, and read from the leader: a follower's direct
	// answer may be old. A terminal record carries a TTL and leaves no marker.
	records := base(subjects.StreamRecords, r.RecordsAll())
	records.MaxMsgsPerSubject = 1
	records.AllowMsgTTL = true

	boot := base(subjects.StreamBoot, r.BootAll())
	boot.MaxMsgsPerSubject = 8

	events := base(subjects.StreamEvents, r.EventsAll())
	events.MaxAge, events.MaxBytes = o.EventsAge, o.EventsBytes
	source, target := r.Republish()
	events.RePublish = &jetstream.RePublish{Source: source, Destination: target}

	output := base(subjects.StreamOutput, r.OutputAll())
	output.MaxAge, output.MaxBytes = o.OutputAge, o.OutputBytes
	output.AllowDirect = true
	return []jetstream.StreamConfig{records, boot, events, output}
}
