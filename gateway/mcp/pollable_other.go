//go:build !linux

package mcp

import "io"

func pollable(in io.ReadCloser) (_ io.ReadCloser, done func()) { return in, func() {} }
