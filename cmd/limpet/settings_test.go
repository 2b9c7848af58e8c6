package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/limpet-sh/limpet/app"
)

// The other programs, which read the same file, know every command and every key at its
// top.
func TestOtherProgramsKnowOurTables(t *testing.T) {
	var text strings.Builder
	root := newRoot(nil)
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name != app.ConfigFlag {
			text.WriteString(f.Name + " = \"x\"\n")
		}
	})
	for _, c := range root.Commands() {
		if c.Name() != workerCommand {
			text.WriteString("[" + c.Name() + "]\n")
		}
	}
	text.WriteString("[gateway]\n[worker]\nurl = \"nats://x\"\n")
	path := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	fs := pflag.NewFlagSet("worker", pflag.ContinueOnError)
	url := fs.String("url", "", "")
	if err := app.ParseSettings(fs, "worker", []string{"--config", path}); err != nil || *url != "nats://x" {
		t.Errorf("%q %v", *url, err)
	}
}
