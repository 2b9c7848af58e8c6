package app

import "testing"

// A token of two places is none that anybody chose, and the end of a line is no part of one.
func TestMCPToken(t *testing.T) {
	const token = "0123456789abcdef"
	h := MCPHTTP{Addr: "127.0.0.1:0", Token: token + "\n"}
	if got, at, err := h.token(); err != nil || got != token || at.Token != "" {
		t.Errorf("%q, %+v, %v", got, at, err)
	}
	h.TokenFile = "/some/file"
	if err := h.validate(); err == nil {
		t.Error("a variable and a file do both")
	}
	h = MCPHTTP{Addr: "127.0.0.1:0", Token: " \n"}
	if _, _, err := h.token(); err == nil {
		t.Error("a blank token does")
	}
}
