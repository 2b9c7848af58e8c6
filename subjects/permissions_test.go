package subjects

import (
	"slices"
	"testing"
)

func may(allowed []string, subject string) bool {
	return slices.ContainsFunc(allowed, func(a string) bool { return covers(a, subject) })
}

func TestPermissions(t *testing.T) {
	r := Default()
	api := "$JS.API."
	cases := []struct {
		role                 Role
		name                 string
		publish, noPublish   []string
		subscribe, noListens []string
		answers              int
	}{
		{
			role: RoleWorker, name: "w1", answers: 1,
			publish: []string{
				r.Record("w1", "acme", KindProcess, "p"), r.Event("acme", "w1", "p", "started"), r.Output("acme", "w1", "p"),
				r.Boot("w1"), r.Lease("w1"), r.Audit("w1", "acme", "start"), r.Approval("w1", "acme", "a"),
				api + "STREAM.MSG.GET.LIMPET_V1_RECORDS", api + "CONSUMER.CREATE.LIMPET_V1_RECORDS.c1." + r.Record("w1", "*", "*", "*"),
			},
			noPublish: []string{
				r.Record("w10", "acme", KindProcess, "p"), r.Event("acme", "w2", "p", "started"), r.Output("acme", "w2", "p"),
				r.Boot("w2"), r.Lease("w2"), r.Audit("w2", "acme", "start"), r.ApprovalAnswer("w1", "acme", "a"),
				r.API("acme", "run"), r.Process("acme", "w1", 1, "p", "read"), r.Control("w2", "drain"),
				api + "STREAM.CREATE.LIMPET_V1_RECORDS", api + "STREAM.PURGE.LIMPET_V1_EVENTS", api + "STREAM.MSG.DELETE.LIMPET_V1_RECORDS",
				api + "CONSUMER.CREATE.LIMPET_V1_RECORDS.c1." + r.Record("w2", "*", "*", "*"),
				api + "CONSUMER.CREATE.LIMPET_V1_RECORDS.c1", api + "CONSUMER.CREATE.LIMPET_V1_AUDIT.c1.>",
				"_INBOX_gateway_gw.x", r.Prefix() + ".live.acme.w1.p.started",
			},
			subscribe: []string{r.WorkerAll("w1", 3), r.Control("w1", "*"), "_INBOX_worker_w1.abc.*"},
			noListens: []string{r.WorkerAll("w2", 3), r.APIAll(), "_INBOX_worker_w10.abc", "_INBOX_gateway_gw.abc", r.EventsAll(), ">"},
		},
		{
			role: RoleGateway, name: "gw", answers: 1,
			publish: []string{
				r.WorkerOpen("acme", "w1", 1), r.Session("acme", "w1", 1, "s", "start"), r.Process("acme", "w1", 1, "p", "read"),
				r.Record("w1", "acme", KindExecution, "x"), r.Event("acme", "w1", "p", "finished"),
				api + "CONSUMER.CREATE.LIMPET_V1_LEASES.c1", api + "STREAM.MSG.GET.LIMPET_V1_RECORDS", r.Audit("gw", "acme", "start"),
			},
			noPublish: []string{
				r.API("acme", "run"), api + "STREAM.CREATE.LIMPET_V1_RECORDS", api + "STREAM.DELETE.LIMPET_V1_EVENTS",
				r.Boot("w1"), r.Lease("w1"), r.Audit("w1", "acme", "start"), r.ApprovalAnswer("w1", "acme", "a"),
			},
			subscribe: []string{r.APIAll(), "_INBOX_gateway_gw.a"},
			noListens: []string{r.WorkerAll("w1", 1), "_INBOX_worker_w1.a", r.EventsAll()},
		},
		{
			role: RoleTenant, name: "acme", answers: 1,
			publish: []string{r.API("acme", "run"), r.API("acme", "open")},
			noPublish: []string{
				r.API("evil", "run"), r.WorkerOpen("acme", "w1", 1), r.Process("acme", "w1", 1, "p", "write"), r.QuestionsAdmit("acme"),
				r.Event("acme", "w1", "p", "finished"), r.Record("w1", "acme", KindSession, "k"), api + "INFO", api + "STREAM.MSG.GET.LIMPET_V1_EVENTS",
				r.Prefix() + ".live.acme.w1.p.finished",
			},
			subscribe: []string{r.LiveProcess("acme", "p"), r.Live("acme"), "_INBOX_tenant_acme.x", r.QuestionsAdmit("acme")},
			noListens: []string{r.Live("evil"), r.LiveAll(), r.APIAll(), r.API("acme", "*"), "_INBOX_tenant_evil.x", r.WorkerAll("w1", 1)},
		},
		{
			role: RoleObserver, name: "archive",
			publish:   []string{api + "CONSUMER.CREATE.LIMPET_V1_EVENTS.c1." + r.EventsAll(), "$JS.ACK.LIMPET_V1_EVENTS.c1.1.2.3.4.5"},
			noPublish: []string{r.API("acme", "run"), r.Event("acme", "w1", "p", "finished"), api + "CONSUMER.CREATE.LIMPET_V1_OUTPUT.c1.>", api + "STREAM.PURGE.LIMPET_V1_EVENTS"},
			subscribe: []string{r.LiveAll(), r.Live("acme"), "_INBOX_observer_archive.x"},
			noListens: []string{r.APIAll(), r.OutputAll(), r.RecordsAll()},
		},
		{
			role: RoleProvisioner, name: "prov",
			publish:   []string{api + "STREAM.CREATE.LIMPET_V1_EVENTS", api + "STREAM.UPDATE.LIMPET_V1_LEASES", api + "INFO"},
			noPublish: []string{api + "STREAM.CREATE.OTHER", r.API("acme", "run"), r.Boot("w1"), api + "CONSUMER.CREATE.LIMPET_V1_EVENTS.c1"},
			subscribe: []string{"_INBOX_provisioner_prov.x"},
			noListens: []string{r.LiveAll(), r.EventsAll()},
		},
	}
	for _, c := range cases {
		t.Run(string(c.role)+" "+c.name, func(t *testing.T) {
			p, err := r.Permissions(c.role, c.name)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range c.publish {
				if !may(p.Publish, s) {
					t.Errorf("may not publish %s", s)
				}
			}
			for _, s := range c.noPublish {
				if may(p.Publish, s) {
					t.Errorf("may publish %s", s)
				}
			}
			for _, s := range c.subscribe {
				if !may(p.Subscribe, s) {
					t.Errorf("may not subscribe to %s", s)
				}
			}
			for _, s := range c.noListens {
				if may(p.Subscribe, s) {
					t.Errorf("may subscribe to %s", s)
				}
			}
			if p.Responses != c.answers {
				t.Errorf("answers: %v", p.Responses)
			}
		})
	}
}

func TestPermissionsRefuse(t *testing.T) {
	for _, c := range []struct {
		role Role
		name string
	}{
		{"", "w1"}, {"root", "w1"}, {RoleWorker, ""}, {RoleWorker, "*"}, {RoleWorker, "a.b"}, {RoleTenant, ">"},
	} {
		if p, err := Default().Permissions(c.role, c.name); err == nil {
			t.Errorf("%+v has %+v", c, p)
		}
	}
}
