// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/internal/fields"
)

type document struct {
	Name  string             `json:"name"`
	Size  float64            `json:"size"`
	Count int                `json:"count"`
	On    bool               `json:"on"`
	Maybe *float64           `json:"maybe"`
	Items []item             `json:"items"`
	Sizes map[string]float64 `json:"sizes" strict:"optional"`
	Color color              `json:"color,omitempty" strict:"optional"`
	Note  *string            `json:"note" strict:"optional"`
	inner int
	Extra int `json:"-"`
}

type item struct {
	ID string `json:"id"`
	N  int64  `json:"n" strict:"optional"`
}

type color string

func (c *color) UnmarshalJSON(data []byte) error {
	if string(data) != `"red"` {
		return fmt.Errorf("must be red, got %s", data)
	}
	*c = "red"
	return nil
}

// Validate also reports the consequence of a missing id.
func (d *document) Validate() error {
	var errs fields.Errors
	if d.Size < 0 {
		errs.Add("size", "must be ≥ 0, got %v", d.Size)
	}
	for i, it := range d.Items {
		if it.ID == "" {
			errs.Add(fields.Member(fields.Index("items", i), "id"), "must not be empty")
		}
	}
	return errs.Err()
}

const valid = `{"name": "a", "size": 1.5, "count": -3, "on": true, "maybe": null, "items": [{"id": "x", "n": 2}]}`

func with(old, new string) string { return strings.Replace(valid, old, new, 1) }

func TestDecode(t *testing.T) {
	var d document
	d.Items = []item{{ID: "old"}, {ID: "older"}}
	d.inner, d.Extra = 1, 2
	must.NoError(t, Decode("snapshot", []byte(" \n"+valid+"\t\r\n"), &d))
	must.Eq(t, "a", d.Name)
	must.Eq(t, 1.5, d.Size)
	must.Eq(t, -3, d.Count)
	must.True(t, d.On)
	must.Nil(t, d.Maybe)
	must.Eq(t, []item{{ID: "x", N: 2}}, d.Items)
	must.Eq(t, "", string(d.Color))
	must.Eq(t, 3, d.inner+d.Extra)

	full := with(`"maybe": null`, `"maybe": 1e-3, "color": "red", "sizes": {"a": 1, "b c": 2}, "note": "\u00e9\n"`)
	d = document{}
	must.NoError(t, Decode("snapshot", []byte(full), &d))
	must.Eq(t, 0.001, *d.Maybe)
	must.Eq(t, "red", string(d.Color))
	must.Eq(t, map[string]float64{"a": 1, "b c": 2}, d.Sizes)
	must.Eq(t, "é\n", *d.Note)

	d = document{Color: "blue"}
	must.NoError(t, Decode("snapshot", []byte(valid), &d))
	must.Eq(t, "blue", string(d.Color))

	d = document{}
	must.NoError(t, Decode("snapshot", []byte(with(`[{"id": "x", "n": 2}]`, `[]`)), &d))
	must.NotNil(t, d.Items)

	must.NoError(t, Decode("snapshot", []byte(with("1.5", "-0.0")), &d))
	must.False(t, math.Signbit(d.Size))
}

func TestDecode_errors(t *testing.T) {
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	for _, tc := range []struct {
		name, doc string
		want      []string // in this order
	}{
		{"missing", `{"name": "a", "items": [{}], "on": false, "maybe": 1}`,
			[]string{"size: is missing", "count: is missing", "items[0].id: is missing"}},
		{"everything missing", `{}`,
			[]string{"name: is missing", "size: is missing", "count: is missing", "on: is missing", "maybe: is missing", "items: is missing"}},
		{"unknown", with(`"n": 2`, `"N": 2, "b": 1, "a.b": null`),
			[]string{
				"items[0].N: unknown field, must be one of: id, n",
				"items[0].b: unknown field, must be one of: id, n",
				`items[0]["a.b"]: unknown field, must be one of: id, n`,
			}},
		{"fields that Go has and JSON has not", with(`"on"`, `"inner": 1, "Extra": 1, "-": 1, "on"`),
			[]string{
				"inner: unknown field, must be one of: name, size, count, on, maybe, items, sizes, color, note",
				"Extra: unknown field, must be one of: name, size, count, on, maybe, items, sizes, color, note",
				"-: unknown field, must be one of: name, size, count, on, maybe, items, sizes, color, note",
			}},
		{"repeated", with(`"n": 2`, `"n": 2, "n": 3, "id": "y"`),
			[]string{"items[0].n: is given more than once", "items[0].id: is given more than once"}},
		{"repeated, with an escape", with(`"n": 2`, `"n": 2, "\u006e": 3`),
			[]string{"items[0].n: is given more than once"}},
		{"NaN", with("1.5", "NaN"), []string{"size: must be a finite number, got NaN"}},
		{"nan, and what else is wrong", `{"name": "a", "size": nan, "count": 1.5, "on": 1, "maybe": -Infinity, "items": [{"id": ""}]}`,
			[]string{
				"size: must be a finite number, got nan",
				"count: must be a whole number, got 1.5",
				"on: must be a bool, got a number 1",
				"maybe: must be a finite number, got -Infinity",
				"items[0].id: must not be empty",
			}},
		{"too large", with("1.5", "-1e999"), []string{"size: must be a finite number, got -1e999"}},
		{"too large a whole number", with("-3", "9223372036854775808"), []string{"count: must be a whole number, got 9223372036854775808"}},
		{"NaN is no whole number", with("-3", "NaN"), []string{"count: must be a whole number, got NaN"}},
		{"string for a number", with("1.5", `"1.5"`), []string{`size: must be a number, got a string "1.5"`}},
		{"number for a string", with(`"a"`, "7"), []string{"name: must be a string, got a number 7"}},
		{"null", with("1.5", "null"), []string{"size: must be a number, got null"}},
		{"list for an object", with(`{"id": "x", "n": 2}`, "[1]"), []string{"items[0]: must be an object, got a list"}},
		{"object for a list", with(`[{"id": "x", "n": 2}]`, "{}"), []string{"items: must be a list, got an object"}},
		{"bool for a pointer", with(`"maybe": null`, `"maybe": true`), []string{"maybe: must be a number or null, got a bool true"}},
		{"in a map", with(`"on"`, `"sizes": {"a": 1, "b c": "2", "a": 3}, "on"`),
			[]string{"sizes.a: is given more than once", `sizes["b c"]: must be a number, got a string "2"`}},
		{"a long string", with("1.5", `"`+strings.Repeat("é", 50)+`"`),
			[]string{`size: must be a number, got a string "` + strings.Repeat("é", 39) + "…"}},
		{"its own decoder", with(`"on"`, `"color": "blue", "on"`), []string{`color: must be red, got "blue"`}},
		{"its own decoder, NaN", with(`"on"`, `"color": NaN, "on"`), []string{"color: must be a finite number, got NaN"}},
		{"Validate", with("1.5", "-1"), []string{"size: must be ≥ 0, got -1"}},
		{"Validate does not repeat", with(`{"id": "x", "n": 2}`, `{}, 1, {"id": ""}`),
			[]string{"items[0].id: is missing", "items[1]: must be an object, got a number 1", "items[2].id: must not be empty"}},

		{"empty", "", []string{"snapshot: is empty, must be a JSON object (line 1, column 1)"}},
		{"blank", " \n\t", []string{"snapshot: is empty, must be a JSON object (line 2, column 2)"}},
		{"not an object", "[]", []string{"snapshot: must be an object, got a list"}},
		{"nor is this", `"tasks"`, []string{`snapshot: must be an object, got a string "tasks"`}},
		{"trailing data", valid + "\n{}", []string{"snapshot: has more data after its end (line 2, column 1)"}},
		{"trailing comma", with(`"n": 2`, `"n": 2,`),
			[]string{"items[0]: invalid character '}' looking for beginning of object key string (line 1, column 97)"}},
		{"comment", "// x\n" + valid, []string{"snapshot: invalid character '/' looking for beginning of value (line 1, column 1)"}},
		{"no colon", `{"name" 1}`, []string{"name: invalid character '1' after object key (line 1, column 9)"}},
		{"no comma", `{"items": [{"id": "x" "n": 2}]}`, []string{`items[0]: invalid character '"' after object key:value pair (line 1, column 23)`}},
		{"no comma in a list", `{"items": [1 2]}`, []string{"items[1]: invalid character '2' after array element (line 1, column 14)"}},
		{"no value", `{"é": }`, []string{`["é"]: invalid character '}' looking for beginning of value (line 1, column 7)`}},
		{"ends early", `{"items": [`, []string{"items: ends early (line 1, column 12)"}},
		{"ends in a string", `{"name": "x\"`, []string{"name: ends early (line 1, column 10)"}},
		{"ends in a name", `{"name`, []string{"snapshot: ends early (line 1, column 2)"}},
		{"bad escape", `{"name": "\x"}`, []string{"name: invalid character 'x' in string escape code (line 1, column 10)"}},
		{"not UTF-8", "{\"name\": \"\xff\"}", []string{"snapshot: is not valid UTF-8 (line 1, column 1)"}},
		{"bad word", `{"size": 01}`, []string{"snapshot: invalid character '1' after object key:value pair (line 1, column 11)"}},
		{"bad word", `{"size": True}`, []string{"size: invalid character 'T' looking for beginning of value (line 1, column 10)"}},
		{"too deep", `{"items": ` + deep + `}`, []string{"items" + strings.Repeat("[0]", 64) + ": is nested more than 64 levels deep (line 1, column 75)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var d document
			err := Decode("snapshot", []byte(tc.doc), &d)
			must.EqError(t, err, strings.Join(tc.want, "\n"))
			var errs fields.Errors
			must.True(t, errors.As(err, &errs))
		})
	}
}

type plain struct{}

func (*plain) Validate() error { return errors.New("out of order") }

func TestDecode_plainValidate(t *testing.T) {
	must.EqError(t, Decode("snapshot", []byte("{}"), &plain{}), "out of order")
}

func TestDecode_unsupported(t *testing.T) {
	defer func() { must.StrContains(t, fmt.Sprint(recover()), "cannot decode into a chan int") }()
	var d struct {
		C chan int `json:"c"`
	}
	_ = Decode("snapshot", []byte(`{"c": 1}`), &d)
}

// FuzzDecode checks that the decoder never panics, and accepts only what encoding/json
// accepts, with the same result.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		valid, "", "{}", "[]", "null", `{"size": NaN}`, `{"size": 1e999}`, `{"name": "\ud800\u0000"}`, "{\"name\": \"\xff\"}",
		`{"items": [[[[]]]]}`, `{"a": 1, "a": 2}`, `{"": -0.0e-0}`, valid + valid, valid[:len(valid)/2], "\ufeff{}", "{\"name\":\"\\\"",
		with(`"on"`, `"color": {"a": [nan]}, "sizes": {"": 1}, "on"`),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var d document
		err := Decode("snapshot", data, &d)
		if err != nil {
			var errs fields.Errors
			must.True(t, errors.As(err, &errs))
			must.SliceNotEmpty(t, errs)
			for _, e := range errs {
				must.NotEq(t, "", e.Path)
				must.NotEq(t, "", e.Problem)
			}
			must.EqError(t, Decode("snapshot", data, &document{}), err.Error())
			return
		}
		var theirs document
		must.NoError(t, json.Unmarshal(data, &theirs))
		if theirs.Size == 0 {
			theirs.Size = 0
		}
		ours, err := json.Marshal(d)
		must.NoError(t, err)
		again, err := json.Marshal(theirs)
		must.NoError(t, err)
		must.Eq(t, string(again), string(ours))
	})
}

func TestDecodeBy(t *testing.T) {
	type part struct {
		Seq uint64 `json:"seq" strict:"optional"`
		Of  string `json:"of" strict:"optional"`
	}
	var into struct {
		Parts []part `json:"parts"`
	}
	rules := Rules{Needs: []string{"parts[].seq"}, Validate: func() error { return fields.Errors{{Path: "parts[0].seq", Problem: "x"}} }}
	must.EqError(t, DecodeBy("snapshot", []byte(`{"parts": [{"seq": -1}, {"of": "a"}, {"seq": 18446744073709551615}]}`), &into, rules),
		"parts[0].seq: must be a whole number ≥ 0, got -1\nparts[1].seq: is missing")
	must.Eq(t, uint64(math.MaxUint64), into.Parts[2].Seq)
}
