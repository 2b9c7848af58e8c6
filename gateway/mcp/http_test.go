package mcp

import (
	"bufio"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// Who has no token is told so at once, also while its request is still on its way.
func TestARefusalWaitsForNoBody(t *testing.T) {
	srv := httptest.NewServer(&handler{s: &Server{}, cfg: HTTPConfig{BodyBytes: 1 << 20, Authorize: func(string) bool { return false }}})
	defer srv.Close()
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(bodyLimit / 2)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad\r\nContent-Length: 1000\r\n\r\n{")); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusUnauthorized || !r.Close {
		t.Errorf("%v, close %v", r.Status, r.Close)
	}
}
