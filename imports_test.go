package limpet_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/limpet-sh/limpet/"

// layers is the table of arrows: a package may import those named, and nothing else of
// ours. Imports point down; a new arrow is a decision, made here.
var layers = map[string][]string{
	"subjects":                           {},
	"subjects/wire":                      {"subjects"},
	"subjects/bus":                       {"subjects", "subjects/wire"},
	"subjects/bus/embedded":              {"subjects", "subjects/wire", "subjects/bus"},
	"subjects/bus/embedded/embeddedtest": {"subjects", "subjects/bus", "subjects/bus/embedded"}, // for tests
	"safety":                             {"subjects", "subjects/wire"},
	"actors/runtime":                     {"subjects", "subjects/wire"},
	"actors/output":                      {"subjects", "subjects/wire"},
	"actors/keeper":                      {"subjects", "subjects/wire", "actors/runtime"},
	"registry":                           {"subjects", "subjects/wire", "subjects/bus"},
	"observer":                           {"subjects", "subjects/wire", "subjects/bus"},
	"client":                             {"subjects", "subjects/wire", "subjects/bus"},
	"gateway":                            {"subjects", "subjects/wire", "subjects/bus", "registry", "observer", "actors/output"},
	"gateway/mcp":                        {"subjects", "subjects/wire", "client", "actors/output"},
	"actors": {
		"subjects", "subjects/wire", "subjects/bus", "registry", "observer", "safety",
		"actors/runtime", "actors/output", "actors/keeper",
	},
	"app": {
		"subjects", "subjects/wire", "subjects/bus", "subjects/bus/embedded", "registry", "observer",
		"actors", "actors/keeper", "gateway", "gateway/mcp", "client",
	},
	"cmd/limpet":  {"app", "client", "actors/keeper", "subjects", "subjects/wire"},
	"cmd/worker":  {"app", "actors/keeper", "subjects", "subjects/bus"},
	"cmd/gateway": {"app", "actors/keeper", "subjects", "subjects/bus"},
}

// homes is the one home of each dependency that has one.
var homes = map[string][]string{
	"github.com/nats-io/nats.go":             {"subjects/bus"},
	"github.com/nats-io/nats-server/v2":      {"subjects/bus/embedded"},
	"github.com/vmihailenco/msgpack/v5":      {"subjects/wire"},
	"github.com/creack/pty":                  {"actors/runtime"},
	"github.com/modelcontextprotocol/go-sdk": {"gateway/mcp"},
	"mvdan.cc/sh/v3":                         {"safety"},
	"github.com/oklog/run":                   {"app"},
	"github.com/spf13/cobra":                 {"cmd/limpet"},
	"github.com/spf13/pflag":                 {"app", "cmd/limpet", "cmd/worker", "cmd/gateway"},
	"github.com/pelletier/go-toml/v2":        {"app"},
	"github.com/rogpeppe/go-internal":        {}, // tests only
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "./...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range list(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if name == strings.TrimSuffix(module, "/") || name == "chaos" {
			continue // chaos may import all but cmd, which nothing can
		}
		allowed, ok := layers[name]
		if !ok {
			t.Errorf("%s is not in the table of layers", name)
		}
		for _, imp := range p.Imports {
			if dep, ours := strings.CutPrefix(imp, module); ours && !slices.Contains(allowed, dep) {
				t.Errorf("%s may not import %s", name, dep)
			}
			for home, users := range homes {
				if (imp == home || strings.HasPrefix(imp, home+"/")) && !slices.Contains(users, name) {
					t.Errorf("%s may not import %s, whose home is %v", name, imp, users)
				}
			}
		}
	}
}
