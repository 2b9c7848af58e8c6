package chaos

import (
	"strings"
	"testing"

	"github.com/limpet-sh/limpet/gateway/mcp"
)

// TestCaseMCPState: what carries over from one call to the next, what does not, and that
// a model is told where it is.
func TestCaseMCPState(t *testing.T) {
	h := newMCPHost(t, func(c *mcp.Config) { c.Session.CaptureState = true })
	root := func(c *mcpClient) string {
		c.t.Helper()
		return strings.TrimSpace(c.ok(run("pwd")).text)
	}
	const lost = "[note: state: not captured: "
	lives(t, h.Server, map[string]func(*testing.T, *mcpClient){
		"State80DirectoryIsDeleted": func(t *testing.T, c *mcpClient) {
			at := root(c)
			c.ok(run("mkdir d80 && cd d80 && pwd")).is(t, at+"/d80\n[the next command runs in "+at+"/d80]", nil)
			c.ok(run("rmdir ../d80")).is(t, "(no output)", nil)
			r := c.call(run("echo no"))
			if !r.failed || r.code() != "workdir_not_found" || !strings.Contains(r.text, "there is no directory "+at+"/d80;") || !strings.Contains(r.text, "It is back in "+at) {
				t.Errorf("%s", r.text)
			}
			c.ok(run("cd /tmp && echo ok")).is(t, "ok\n[the next command runs in /tmp]", params{"exit_code": 0})
		},
		"State82OtherSessions": func(t *testing.T, c *mcpClient) {
			at := root(c)
			child := stdio(t, h.Server, nil)
			child.ok(run("cd /usr; export LEAK=1"))
			c.ok(run("pwd; echo [$LEAK]")).is(t, at+"\n[]\n", nil)
			child.ok(run("pwd; echo [$LEAK]")).is(t, "/usr\n[1]\n", nil)
		},
		"State84FunctionsStayOut": func(t *testing.T, c *mcpClient) {
			c.ok(run("_h(){ echo hi; }; w(){ _h; }; sed(){ echo shadowed; }; export -f sed w; alias ll=ls; set -e"))
			c.ok(run("declare -F | grep -c 'w$'; echo a | sed s/a/b/; false; echo on")).is(t, "0\nb\non\n", nil)
		},
		"State90Exit": func(t *testing.T, c *mcpClient) {
			at := root(c)
			c.ok(run("cd /usr; exit 5")).is(t, "(no output)\n[exit code 5]\n[the next command runs in /usr]", params{"exit_code": 5})
			c.ok(run("pwd")).is(t, "/usr\n", nil)
			c.ok(run("cd " + at))
			r := c.ok(run("cd /usr; exec true"))
			if r.num("exit_code") != 0 || !strings.HasPrefix(r.text, "(no output)\n"+lost) {
				t.Errorf("%s", r.text)
			}
			c.ok(run("pwd")).is(t, at+"\n", nil)
		},
		"State92InParallel": func(t *testing.T, c *mcpClient) {
			c.ok(run("cd /usr; export V=before"))
			done := make(chan result, 5)
			for range cap(done) {
				go func() { done <- c.call(run("pwd; echo $V; cd /tmp; sleep 0.05; V=after")) }() // all are waited for
			}
			for range cap(done) {
				r := <-done
				if out := r.str("stdout"); out != "/usr\nbefore\n" && out != "/tmp\nbefore\n" && out != "/tmp\nafter\n" {
					t.Errorf("%q", out)
				}
			}
			c.ok(run("pwd; echo $V")).is(t, "/tmp\nafter\n", nil)
		},
		"StateOfACallElsewhere": func(t *testing.T, c *mcpClient) {
			c.ok(run("cd /usr"))
			c.ok(params{"command": "pwd", "cwd": "/"}).is(t, "/\n[the next command runs in /usr]", nil)
			c.ok(run("(cd /var); cd /var & wait; cd /no/such 2>/dev/null; pwd")).is(t, "/usr\n", nil)
		},
	})
}
