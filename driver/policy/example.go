// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package policy

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// example is a snapshot as written by hand: its JSON omits optional zero fields.
type example struct {
	Snapshot
	needs []string
}

// MarshalJSON keeps the order of the fields.
func (e example) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	err := e.write(&out, reflect.ValueOf(e.Snapshot), "")
	return out.Bytes(), err
}

func (e example) write(out *bytes.Buffer, v reflect.Value, path string) error {
	comma := ""
	next := func(before string) {
		out.WriteString(comma + before)
		comma = ","
	}
	switch {
	case v.Kind() == reflect.Struct:
		out.WriteByte('{')
		for i := range v.NumField() {
			field := v.Type().Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			at := fields.Member(path, name)
			if v.Field(i).IsZero() && field.Tag.Get("strict") == "optional" && !slices.Contains(e.needs, at) {
				continue
			}
			next(strconv.Quote(name) + ":")
			if err := e.write(out, v.Field(i), at); err != nil {
				return err
			}
		}
		out.WriteByte('}')
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		out.WriteByte('[')
		for i := range v.Len() {
			next("")
			if err := e.write(out, v.Index(i), path+"[]"); err != nil {
				return err
			}
		}
		out.WriteByte(']')
	default:
		data, err := json.Marshal(v.Interface())
		out.Write(data)
		return err
	}
	return nil
}
