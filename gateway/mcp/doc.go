// Package mcp is the MCP front end: one tool, bash, over stdio and streamable HTTP.
package mcp
