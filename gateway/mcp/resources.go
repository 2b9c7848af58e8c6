package mcp

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/limpet-sh/limpet/subjects"
	"github.com/limpet-sh/limpet/subjects/wire"
)

const (
	// resourceBytes is how much of an output a resource shows.
	resourceBytes = 64 << 10
	// maxListedResources bounds the processes in a list of resources, newest first.
	maxListedResources = 50

	recordType = "application/json"
	outputType = "text/plain"
)

// resource is what a URI names.
type resource struct {
	process string
	record  bool
	after   int64 // raw offset of an output; -1: the last of it
}

func recordURI(process string) string { return "limpet://process/" + process + "/record" }
func outputURI(process string) string { return "limpet://process/" + process + "/output" }

// parseURI reads limpet://process/{id}/record and …/output?after=N.
func parseURI(uri string) (r resource, ok bool) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "limpet" || u.Host != "process" || u.Fragment != "" {
		return r, false
	}
	id, what, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	r = resource{process: id, record: what == "record", after: -1}
	if !subjects.ValidToken(id) || what != "record" && what != "output" {
		return r, false
	}
	for name, values := range u.Query() {
		n, err := strconv.ParseInt(values[0], 10, 64)
		if r.record || name != "after" || err != nil || n < 0 || n > wire.MaxWhole {
			return r, false
		}
		r.after = n
	}
	return r, true
}

// addResources declares what can be read; lists and reads are answered here.
func (c *conn) addResources(s *sdk.Server) {
	s.AddResourceTemplate(&sdk.ResourceTemplate{
		Name: "output", Title: "Output of a process", MIMEType: outputType,
		URITemplate: "limpet://process/{id}/output{?after}",
		Description: "The last 64 KiB of what a process wrote, or 64 KiB from the byte offset `after` on; _meta.next_offset goes on.",
	}, c.readResource)
	s.AddResourceTemplate(&sdk.ResourceTemplate{
		Name: "record", Title: "Record of a process", MIMEType: recordType,
		URITemplate: "limpet://process/{id}/record",
		Description: "State, exit code, reason, times and counts of a process. Subscribe to learn of its end.",
	}, c.readResource)
}

func (c *conn) readResource(ctx context.Context, req *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	uri := req.Params.URI
	r, ok := parseURI(uri)
	if !ok {
		return nil, sdk.ResourceNotFoundError(uri)
	}
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return nil, rpcError(err)
	}
	defer done()
	b, err := c.session(ctx)
	if err != nil {
		return nil, rpcError(err)
	}
	var content *sdk.ResourceContents
	if r.record {
		content, err = c.readRecord(ctx, b, r)
	} else {
		content, err = c.readOutput(ctx, b, r)
	}
	if err != nil {
		if wire.AsError(err).Code == wire.CodeNotFound {
			return nil, sdk.ResourceNotFoundError(uri)
		}
		return nil, rpcError(err)
	}
	content.URI = uri
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{content}, Cacheable: private()}, nil
}

func (c *conn) readRecord(ctx context.Context, b *bound, r resource) (*sdk.ResourceContents, error) {
	receipt, err := b.procs.Status(ctx, r.process)
	if err != nil {
		return nil, err
	}
	c.left.saw(receipt.Process, receipt.State)
	data, err := json.Marshal(receipt)
	if err != nil {
		return nil, wire.Errorf(wire.CodeInternal, "the record cannot be encoded")
	}
	return &sdk.ResourceContents{MIMEType: recordType, Text: string(data)}, nil
}

// readOutput reads as many pages as fit.
func (c *conn) readOutput(ctx context.Context, b *bound, r resource) (*sdk.ResourceContents, error) {
	if r.after < 0 {
		receipt, err := b.procs.Status(ctx, r.process)
		if err != nil {
			return nil, err
		}
		r.after = max(0, receipt.Output.TotalBytes-resourceBytes)
	}
	p, err := b.procs.Read(ctx, wire.Read{
		ProcessRef: wire.ProcessRef{Process: r.process}, Offset: &r.after, MaxBytes: resourceBytes, View: wire.ViewSafe,
	})
	if err != nil {
		return nil, err
	}
	c.left.shown(r.process, p.NextOffset)
	if p.End {
		c.left.saw(r.process, p.State)
	}
	a := pageAnswer(p)
	return &sdk.ResourceContents{MIMEType: outputType, Text: *a.Output, Meta: sdk.Meta{
		"offset": p.Offset, "next_offset": p.NextOffset, "has_more": p.HasMore, "end": p.End,
		"total_bytes": p.Output.TotalBytes, "gap_bytes": a.GapBytes, "state": p.State, "exit_code": p.ExitCode,
	}}, nil
}

// listResources are the records and outputs of the session's newest processes.
func (c *conn) listResources(ctx context.Context) (*sdk.ListResourcesResult, error) {
	res := &sdk.ListResourcesResult{Resources: []*sdk.Resource{}, Cacheable: private()}
	if c.bound.Load() == nil && !c.kept {
		return res, nil // it has run nothing, and need not begin for this
	}
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return nil, rpcError(err)
	}
	defer done()
	b, err := c.session(ctx)
	if err != nil {
		return nil, rpcError(err)
	}
	l, err := b.List(ctx)
	if err != nil {
		return nil, rpcError(err)
	}
	slices.SortStableFunc(l.Processes, func(a, b wire.Receipt) int { return b.CreatedAt.Compare(a.CreatedAt) })
	for _, r := range l.Processes[:min(len(l.Processes), maxListedResources)] {
		res.Resources = append(
			res.Resources,
			&sdk.Resource{
				URI: outputURI(r.Process), Name: "output of " + r.Process, Title: r.Description, MIMEType: outputType, Size: r.Output.TotalBytes,
				Description: "output, " + string(r.State),
			},
			&sdk.Resource{
				URI: recordURI(r.Process), Name: "record of " + r.Process, Title: r.Description, MIMEType: recordType,
				Description: "record, " + string(r.State),
			},
		)
	}
	return res, nil
}

// private keeps intermediaries from answering one client with what is another's.
func private() sdk.Cacheable { return sdk.Cacheable{CacheScope: "private"} }
