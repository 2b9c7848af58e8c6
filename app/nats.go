package app

import (
	"os"

	"github.com/spf13/pflag"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/bus"
)

// Variables that hold passwords, which are never in an argument or in the file of
// settings.
const (
	PasswordVariable       = "LIMPET_NATS_PASSWORD"
	TenantPasswordVariable = "LIMPET_MCP_NATS_PASSWORD"
)

// NATSFlags say how a role connects to a NATS of somebody else.
type NATSFlags struct {
	URL, User, Creds string
}

// Add defines the flags, each with prefix before its name.
func (f *NATSFlags) Add(fs *pflag.FlagSet, prefix string) {
	fs.StringVar(&f.URL, prefix+"url", "", "NATS servers, comma separated, such as nats://127.0.0.1:4222")
	fs.StringVar(&f.User, prefix+"user", "", "NATS user; its password is read from $"+PasswordVariable)
	fs.StringVar(&f.Creds, prefix+"creds", "", "NATS credentials file")
}

// Bus is how to connect as a role of that name, with the password of a variable.
func (f *NATSFlags) Bus(role subjects.Role, name, password string) (bus.Config, error) {
	if err := subjects.CheckToken("name", name); err != nil {
		return bus.Config{}, err
	}
	return bus.Config{
		URL: f.URL, User: f.User, Password: os.Getenv(password), CredsFile: f.Creds,
		InboxPrefix: subjects.InboxPrefix(role, name),
	}, nil
}
