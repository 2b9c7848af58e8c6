package wire

import (
	"fmt"
	"regexp"
	"slices"
)

var escapedHTML = regexp.MustCompile(`&(?:amp|lt|gt|quot|#39|#x27|apos);`)

// operators mean something to a shell and nothing to a program.
var operators = []string{"&&", "||", "|", ";", "&", ">", ">>", "<", "<<", "2>", "2>&1", "&>"}

// Notes says what looks odd about a command and is not a fault: it is run as given,
// and the notes go into the receipt, so that who sent it can see why the result is
// not what they meant. At most two.
func (c *Command) Notes() []string {
	var notes []string
	for _, s := range append([]string{c.Text}, c.Argv...) {
		if e := escapedHTML.FindString(s); e != "" {
			notes = append(notes, fmt.Sprintf("The command looks HTML-escaped (it holds %s). It was run as given and not decoded; if && or > was meant, send it unescaped.", e))
			break
		}
	}
	for i, a := range c.Argv {
		if i > 0 && slices.Contains(operators, a) {
			notes = append(notes, fmt.Sprintf("argv[%d] is %q: with argv there is no shell, so it is a literal argument. Use text for shell syntax.", i, a))
			break
		}
	}
	return notes
}
