// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package remaining

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Names of options for a number of steps or epochs, in lower case with underscores,
// without ambiguous ones (--epoch may be the first epoch; -n).
var (
	stepNames = []string{
		"max_steps", "total_steps", "num_steps", "n_steps", "steps", "train_steps", "num_train_steps", "max_train_steps",
		"training_steps", "num_training_steps", "total_train_steps", "max_iters", "max_iter", "num_iters", "n_iters",
		"total_iters", "train_iters", "iters", "num_iterations", "max_iterations", "total_iterations", "iterations",
		"total_timesteps", "max_update", "max_updates", "num_updates",
	}
	epochNames = []string{
		"epochs", "num_epochs", "n_epochs", "nb_epochs", "nepochs", "max_epochs", "max_epoch", "total_epochs",
		"train_epochs", "num_train_epochs", "training_epochs",
	}
)

// Assume finds totals in a task's command line and environment: "--epochs 200", "--epochs=200",
// "-steps 17408", "trainer.max_epochs=10", NUM_EPOCHS=10. The command line takes precedence. Two
// different numbers in one of them are ignored: it may be a script of several training runs. Only
// names and numbers are kept.
func Assume(command []string, env map[string]string) Assumption {
	var words []string
	for _, arg := range command {
		words = append(words, strings.FieldsFunc(arg, func(r rune) bool { return strings.ContainsRune(" \t\r\n;&|'\"", r) })...)
	}
	var steps, epochs guess
	for i, word := range words {
		name, value, joined := strings.Cut(word, "=")
		option := strings.TrimLeft(name, "-")
		switch {
		case !joined && (option == name || i+1 == len(words)):
			continue // not an option, or no value follows
		case !joined:
			value = words[i+1]
		}
		short := option[strings.LastIndexByte(option, '.')+1:]
		steps.see(stepNames, short, name, value)
		epochs.see(epochNames, short, name, value)
	}
	var envSteps, envEpochs guess
	for _, name := range slices.Sorted(maps.Keys(env)) {
		envSteps.see(stepNames, name, name, env[name])
		envEpochs.see(epochNames, name, name, env[name])
	}
	var a Assumption
	a.Steps, a.StepsFrom = steps.or(envSteps)
	a.Epochs, a.EpochsFrom = epochs.or(envEpochs)
	return a
}

type guess struct {
	value float64
	from  string
	seen  bool
}

func (g *guess) see(names []string, option, from, text string) {
	if !slices.Contains(names, strings.ReplaceAll(strings.ToLower(option), "-", "_")) {
		return
	}
	v, err := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
	if v = number(v); err != nil || v == 0 {
		return // Hugging Face's -1 means none
	}
	if g.seen && v != g.value {
		g.value, g.from = 0, ""
		return
	}
	if !g.seen {
		g.value, g.from, g.seen = v, from, true
	}
}

// or returns the guess, or other if no option was found.
func (g guess) or(other guess) (float64, string) {
	if g.seen {
		return g.value, g.from
	}
	return other.value, other.from
}
