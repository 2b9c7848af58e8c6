package wire

import "strings"

// Nearest gives the name most like s, or "" when none is close: what an error about
// an unknown field or verb suggests. Case, '_' and '-' do not count, so timeoutMs
// finds timeout_ms; nor does a missing or extra ending, so timeout does too.
func Nearest(s string, names []string) string {
	s = plain(s)
	if len(s) == 0 || len(s) > maxQuoted {
		return ""
	}
	best, least := "", len(s)/3+2
	for _, n := range names {
		p := plain(n)
		if p == s {
			return n
		}
		d := distance(s, p)
		if len(s) >= 3 && len(p) >= 3 && (strings.HasPrefix(p, s) || strings.HasPrefix(s, p)) {
			d = 0
		}
		if d < least {
			best, least = n, d
		}
	}
	return best
}

func plain(s string) string {
	return strings.NewReplacer("_", "", "-", "").Replace(strings.ToLower(s))
}

// distance counts the bytes to insert, remove or change to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
