package app

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/pflag"

	"github.com/limpet-sh/limpet/subjects/wire"
)

// ConfigFlag is the name of the flag that every program of ours has for its file.
const ConfigFlag = "config"

// Table is a table of the file, and the flags that its keys are the names of. The name ""
// stands for the top of the file.
type Table struct {
	Name  string
	Flags *pflag.FlagSet
	// Active tables also take the environment: that of a command that is not run is not
	// looked at.
	Active bool
}

// foreign are tables that another program of ours reads from the same file.
var foreign = []string{"worker", "gateway", "run", "up", "start", "ps", "logs", "search", "wait", "write", "kill", "events", "mcp"}

// unsettable flags say what to do now, which is no setting.
var unsettable = []string{ConfigFlag, "help", "version"}

// Settings gives each flag that the command line did not its value from the environment
// ($LIMPET_, the table and the name: LIMPET_MCP_HTTP), else from the file, else leaves it
// at its default. The file is the one that --config or $LIMPET_CONFIG names, which must
// then exist, or limpet/config.toml in $XDG_CONFIG_HOME. Every key of the file in our
// tables is checked, used or not; the tables of other programs only by their name.
//
// It is called once, by one goroutine, after the flags were parsed.
func Settings(tables []Table, config string) error {
	path, named := configFile(config)
	var file *settingsFile
	if path != "" {
		b, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !named:
		case err != nil:
			return fmt.Errorf("settings: %w", err)
		default:
			if file, err = parseSettings(path, b, tables); err != nil {
				return err
			}
		}
	}
	for _, t := range tables {
		if err := t.fill(file); err != nil {
			return err
		}
	}
	return nil
}

// ParseSettings parses the command line of a program that has one table, and takes the
// rest of its settings from the environment and the file.
func ParseSettings(fs *pflag.FlagSet, table string, args []string) error {
	config := fs.String(ConfigFlag, "", "file of settings (default $LIMPET_CONFIG, $XDG_CONFIG_HOME/limpet/config.toml)")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("%q is no flag; see: %s --help", fs.Arg(0), table)
	}
	return Settings([]Table{{Name: table, Flags: fs, Active: true}}, *config)
}

// configFile is the file to read, and whether somebody named it.
func configFile(flag string) (path string, named bool) {
	if path = cmp.Or(flag, os.Getenv("LIMPET_CONFIG")); path != "" {
		return path, true
	}
	base, err := os.UserConfigDir() // $XDG_CONFIG_HOME, or ~/.config
	if err != nil {
		return "", false
	}
	return filepath.Join(base, "limpet", "config.toml"), false
}

// Variable is the environment variable of a flag.
func (t Table) Variable(flag string) string {
	name := "LIMPET_" + flag
	if t.Name != "" {
		name = "LIMPET_" + t.Name + "_" + flag
	}
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// names of the flags that are settings.
func (t Table) names() (names []string) {
	t.Flags.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains(unsettable, f.Name) {
			names = append(names, f.Name)
		}
	})
	return names
}

func (t Table) fill(file *settingsFile) error {
	for _, name := range t.names() {
		f := t.Flags.Lookup(name)
		if f.Changed { // on the command line
			continue
		}
		if text := os.Getenv(t.Variable(name)); text != "" && t.Active { // empty is unset
			if err := f.Value.Set(text); err != nil {
				return fmt.Errorf("%s: %q does not do for --%s: %w", t.Variable(name), text, name, err)
			}
			continue
		}
		if err := file.set(t.Name, f); err != nil {
			return err
		}
	}
	return nil
}

// settingsFile is a file whose keys are all known.
type settingsFile struct {
	path   string
	values map[string]any // of the top; tables are maps
	lines  map[string]int // by table and key, with a dot between
}

func parseSettings(path string, b []byte, tables []Table) (*settingsFile, error) {
	f := &settingsFile{path: path, lines: map[string]int{}}
	if err := toml.Unmarshal(b, &f.values); err != nil {
		if d, ok := errors.AsType[*toml.DecodeError](err); ok {
			row, column := d.Position()
			return nil, fmt.Errorf("%s:%d:%d: %w", path, row, column, err)
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := f.locate(b, tables); err != nil {
		return nil, err
	}
	return f, f.check(tables)
}

// locate finds the line of each key: the decoder tells it of those that it has no place
// for, and it is given a place for none.
func (f *settingsFile) locate(b []byte, tables []Table) error {
	var fields []reflect.StructField
	for i, t := range tables {
		if t.Name != "" {
			fields = append(fields, reflect.StructField{
				Name: fmt.Sprintf("T%d", i), Type: reflect.TypeFor[struct{}](),
				Tag: reflect.StructTag(`toml:"` + t.Name + `"`),
			})
		}
	}
	d := toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields()
	err := d.Decode(reflect.New(reflect.StructOf(fields)).Interface())
	if missing, ok := errors.AsType[*toml.StrictMissingError](err); ok {
		for _, e := range missing.Errors {
			row, _ := e.Position()
			f.lines[strings.Join(e.Key(), ".")] = row
		}
		return nil
	}
	if e, ok := errors.AsType[*toml.DecodeError](err); ok {
		row, _ := e.Position()
		return fmt.Errorf("%s:%d: %s is a table: write [%[3]s] and its settings below", f.path, row, strings.Join(e.Key(), "."))
	}
	return err
}

// check refuses what is no setting, with the nearest that is.
func (f *settingsFile) check(tables []Table) error {
	var errs []error
	known := map[string][]string{} // by table
	for _, t := range tables {
		known[t.Name] = append(known[t.Name], t.names()...)
	}
	for _, key := range sorted(f.values) {
		inner, isTable := f.values[key].(map[string]any)
		names, ours := known[key]
		switch {
		case isTable && ours:
			for _, k := range sorted(inner) {
				if !slices.Contains(names, k) {
					errs = append(errs, f.unknown(key, k, names))
				}
			}
		case isTable && slices.Contains(foreign, key):
		case isTable:
			errs = append(errs, f.unknown("", key, foreign))
		case !slices.Contains(known[""], key) && !slices.Contains(top, key):
			errs = append(errs, f.unknown("", key, append(slices.Clone(top), known[""]...)))
		}
	}
	return errors.Join(errs...)
}

// top are the keys at the top of the file, which limpet takes with every command. The
// other programs have no such.
var top = []string{"state", "session", "json", "verbose"}

func (f *settingsFile) unknown(table, key string, names []string) error {
	full, what := key, "setting"
	if table != "" {
		full = table + "." + key
	} else if _, ok := f.values[key].(map[string]any); ok {
		what = "table"
	}
	text := fmt.Sprintf("%s: there is no such %s", f.at(full), what)
	if near := wire.Nearest(key, names); near != "" {
		text += "; the nearest is " + near
	}
	return errors.New(text)
}

// at names a key and its place.
func (f *settingsFile) at(key string) string {
	if line := f.lines[key]; line > 0 {
		return fmt.Sprintf("%s:%d: %s", f.path, line, key)
	}
	return f.path + ": " + key
}

// set gives a flag the value of its key, if there is one.
func (f *settingsFile) set(table string, flag *pflag.Flag) error {
	if f == nil {
		return nil
	}
	values, key := f.values, flag.Name
	if table != "" {
		values, _ = f.values[table].(map[string]any)
		key = table + "." + key
	}
	v, ok := values[flag.Name]
	if !ok {
		return nil
	}
	if list, ok := v.([]any); ok {
		many, ok := flag.Value.(pflag.SliceValue)
		if !ok {
			return fmt.Errorf("%s: one value is wanted, not a list", f.at(key))
		}
		texts := make([]string, len(list))
		for i, e := range list {
			texts[i] = fmt.Sprint(e)
		}
		return many.Replace(texts)
	}
	if err := flag.Value.Set(fmt.Sprint(v)); err != nil {
		return fmt.Errorf("%s: %q does not do: %w", f.at(key), fmt.Sprint(v), err)
	}
	return nil
}

func sorted(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
