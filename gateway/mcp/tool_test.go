package mcp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// TestToolIsSmall bounds what every conversation pays for.
func TestToolIsSmall(t *testing.T) {
	for _, capture := range []bool{false, true} {
		cfg := Config{YieldMax: DefaultYieldMax, Session: wire.Open{CaptureState: capture}}
		b, err := json.Marshal(&sdk.ListToolsResult{Tools: []*sdk.Tool{cfg.tool()}, Cacheable: sdk.Cacheable{CacheScope: "public", TTLMs: 3_600_000}})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("tools/list has %d bytes, %d of them the description", len(b), len(cfg.words(description)))
		if len(b) > 8192 {
			t.Errorf("tools/list has %d bytes; at most 8,192", len(b))
		}
	}
}

// TestFieldsAreTold holds the schema against the arguments that are taken.
func TestFieldsAreTold(t *testing.T) {
	s := resolve(t, inputSchema()).Schema()
	if len(s.Properties) != len(fields)+1 {
		t.Errorf("%d properties of %d fields and the action", len(s.Properties), len(fields))
	}
	seen := make(map[string]bool)
	for i := range fields {
		f := &fields[i]
		if s.Properties[f.name] == nil || seen[f.name] || f.of == 0 {
			t.Errorf("%s: %v, %v", f.name, s.Properties[f.name], f.of)
		}
		seen[f.name] = true
		for _, bad := range []string{"_ms", "_sec", "_minutes"} {
			if strings.HasSuffix(f.name, bad) {
				t.Errorf("%s is in another unit than all", f.name)
			}
		}
		if (f.kind == kindSeconds) != strings.HasSuffix(f.name, "_s") {
			t.Errorf("%s does not say its unit", f.name)
		}
	}
	for alias, name := range otherNames {
		if !seen[name] || seen[alias] {
			t.Errorf("%s is to mean %s", alias, name)
		}
	}
	for alias, name := range otherActions {
		if _, ok := actionOf(name); !ok {
			t.Errorf("%s is to mean %s", alias, name)
		}
		if _, ok := actionOf(alias); ok {
			t.Errorf("%s is an action", alias)
		}
	}
	for _, name := range actionNames {
		if !strings.Contains(description, name) {
			t.Errorf("%s is not described", name)
		}
	}
}

func TestOutputSchema(t *testing.T) {
	s := resolve(t, json.RawMessage(outputSchema))
	for _, tt := range []struct {
		json string
		good bool
	}{
		{`{"process_id":"p","exit_code":0,"stdout":"","duration_s":0.1}`, true},
		{`{"exit_code":"0"}`, false},
		{`{"error":{"code":7}}`, false},
		{`[]`, false},
	} {
		var v any
		if err := json.Unmarshal([]byte(tt.json), &v); err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(v); (err == nil) != tt.good {
			t.Errorf("%s: %v", tt.json, err)
		}
	}
}

func resolve(t *testing.T, raw json.RawMessage) *jsonschema.Resolved {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	r, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestURIs(t *testing.T) {
	for uri, want := range map[string]resource{
		"limpet://process/abc/record":           {process: "abc", record: true, after: -1},
		"limpet://process/abc/output":           {process: "abc", after: -1},
		"limpet://process/abc/output?after=0":   {process: "abc"},
		"limpet://process/a-B_9/output?after=7": {process: "a-B_9", after: 7},
	} {
		if r, ok := parseURI(uri); !ok || r != want {
			t.Errorf("%s: %+v, %v", uri, r, ok)
		}
	}
	for _, uri := range []string{
		"", "limpet://", "limpet://process/", "limpet://process//record", "limpet://process/a/b", "limpet://process/a.b/record",
		"limpet://process/a/record?after=1", "limpet://process/a/output?after=-1", "limpet://process/a/output?after=x",
		"limpet://process/a/output?before=1", "limpet://session/a/record", "http://process/a/record", "limpet://process/a/record#x",
		"limpet://process/a/../../b/record", "limpet://process/%2e%2e/record", "limpet://process/a/output?after=9999999999999999999",
	} {
		if r, ok := parseURI(uri); ok {
			t.Errorf("%s: %+v", uri, r)
		}
	}
	if recordURI("x") != "limpet://process/x/record" || outputURI("x") != "limpet://process/x/output" {
		t.Error("URIs are made otherwise than read")
	}
}
