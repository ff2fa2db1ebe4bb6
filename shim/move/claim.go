// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Record is the persistent state of a move, from which any process can finish it (Recover).
type Record struct {
	ID    string `json:"id"`
	Owner string `json:"owner"` // the process that executes the move

	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Alloc     string `json:"alloc"`  // the old allocation, "" for a held job (Release)
	Source    string `json:"source"` // node IDs
	Target    string `json:"target"`

	// Suspend means that the job is being suspended. Left is the allocation whose checkpoint a
	// suspended job resumes from that is being released; it waits on Source.
	Suspend bool   `json:"suspend,omitempty"`
	Left    string `json:"left,omitempty"`

	Version uint64 `json:"version"` // of the job, with its JobModifyIndex, before it was bound
	Before  uint64 `json:"before"`
	After   uint64 `json:"after"` // JobModifyIndex of the bound job, 0 if unknown

	Why   string    `json:"why,omitempty"` // for people
	Phase Phase     `json:"phase"`
	Tasks []Task    `json:"tasks"`
	Until time.Time `json:"until"` // expiry of the claim unless renewed, by the owner's clock

	// Index is the record's own index, for check-and-set.
	Index uint64 `json:"-"`
}

// Claims stores records, at most one per job.
type Claims interface {
	// Write replaces the record at r.Index, or creates the job's record if that is 0, and
	// returns the new index. The error wraps ErrClaimed on a conflict.
	Write(ctx context.Context, r Record) (index uint64, err error)
	// Read returns the job's record, with Index 0 if there is none.
	Read(ctx context.Context, namespace, job string) (Record, error)
	// Remove removes the record at r.Index. The error wraps ErrClaimed on a conflict.
	Remove(ctx context.Context, r Record) error
	// List returns all records, and those that it cannot read.
	List(ctx context.Context) ([]Record, []Unreadable, error)
}

// Unreadable is a record that this version cannot read, perhaps of a newer one. It and its job are left
// alone: the variable keeps other moves from claiming the job.
type Unreadable struct {
	Path string `json:"path"` // of the variable
	Why  string `json:"why"`
	// Namespace and Job are "" if unknown.
	Namespace string `json:"namespace,omitempty"`
	Job       string `json:"job,omitempty"`
}

func (u Unreadable) String() string { return "variable " + u.Path + ": " + u.Why }

var ErrClaimed = errors.New("another move of the job is in progress")

// ClaimTTL is how long an unrenewed claim lasts.
const ClaimTTL = 30 * time.Second

// Watch detects abandoned records. Clocks are not compared: a record is abandoned once this
// process has seen it unchanged for ClaimTTL.
type Watch struct{ seen map[string]sighting }

type sighting struct {
	index uint64
	since time.Time
}

// Abandoned returns the records unchanged for ClaimTTL since they were first seen.
func (w *Watch) Abandoned(records []Record) []Record {
	now := time.Now()
	seen := make(map[string]sighting, len(records))
	var out []Record
	for _, r := range records {
		s, ok := w.seen[r.ID]
		if !ok || s.index != r.Index {
			s = sighting{r.Index, now}
		}
		seen[r.ID] = s
		if now.Sub(s.since) >= ClaimTTL {
			out = append(out, r)
		}
	}
	w.seen = seen
	return out
}

// claim is a record that this process owns.
type claim struct {
	claims  Claims
	writing chan struct{} // holds one element during a write

	mu     sync.Mutex
	record Record    // what it refers to never changes, as a renewal may be writing it
	until  time.Time // certainly valid until then
	lost   error
}

func newClaim(claims Claims, r Record) *claim {
	return &claim{claims: claims, writing: make(chan struct{}, 1), record: r}
}

// now returns the record as last written.
func (c *claim) now() Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record
}

// valid returns an error unless the claim is certainly this process's.
func (c *claim) valid() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.lost != nil:
		return c.lost
	case !time.Now().Before(c.until):
		return errors.New("the move's claim expired")
	}
	return nil
}

func (c *claim) ends() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.until
}

// update changes the record and writes it. After a failed write it reads the record, as perhaps
// only the answer was lost.
func (c *claim) update(ctx context.Context, change func(*Record)) error {
	select {
	case c.writing <- struct{}{}:
		defer func() { <-c.writing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	next := c.now()
	change(&next)
	for try := 0; ; try++ {
		sent := time.Now()
		next.Until = sent.Add(ClaimTTL)
		index, err := c.claims.Write(ctx, next)
		if err == nil {
			next.Index = index
			c.mu.Lock()
			c.record = next
			c.until = sent.Add(ClaimTTL * 4 / 5)
			c.mu.Unlock()
			return nil
		}
		err = fmt.Errorf("writing the move's claim: %w", err)
		there, rerr := c.claims.Read(ctx, next.Namespace, next.Job)
		switch {
		case rerr != nil || try == 3:
			return err
		case there.ID == next.ID && there.Owner == next.Owner && there.Index != next.Index:
			next.Index = there.Index // written; retry at the new index
		case !errors.Is(err, ErrClaimed):
			return err
		default:
			c.mu.Lock()
			c.lost = err
			c.mu.Unlock()
			return err
		}
	}
}

func (c *claim) renewLoop(ctx context.Context) {
	every(ctx, ClaimTTL/3, func() {
		ctx, cancel := context.WithTimeout(ctx, ClaimTTL/3)
		defer cancel()
		_ = c.update(ctx, func(*Record) {}) // retried at the next tick; valid reports the expiry
	})
}

// drop removes the record.
func (c *claim) drop(ctx context.Context) error {
	r := c.now()
	err := c.claims.Remove(ctx, r)
	if errors.Is(err, ErrClaimed) {
		there, rerr := c.claims.Read(ctx, r.Namespace, r.Job)
		switch {
		case rerr != nil:
			return rerr
		case there.ID != r.ID || there.Owner != r.Owner:
			return nil // removed with the answer lost, or taken over
		}
		err = c.claims.Remove(ctx, there)
	}
	if err != nil {
		return fmt.Errorf("dropping the move's claim: %w", err)
	}
	return nil
}
