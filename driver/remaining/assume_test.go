// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package remaining

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestAssume(t *testing.T) {
	for _, c := range []struct {
		command []string
		env     map[string]string
		want    Assumption
	}{
		{},
		{[]string{"python", "train.py", "--epochs", "200"}, nil, Assumption{Epochs: 200, EpochsFrom: "--epochs"}},
		{[]string{"train", "--epochs=200", "--lr=0.1"}, nil, Assumption{Epochs: 200, EpochsFrom: "--epochs"}},
		{[]string{"train", "--max_steps", "1000", "--num_train_epochs", "3.0"}, nil, Assumption{Steps: 1000, StepsFrom: "--max_steps", Epochs: 3, EpochsFrom: "--num_train_epochs"}},
		{[]string{"train", "--max_steps", "-1", "--max-epochs", "3"}, nil, Assumption{Epochs: 3, EpochsFrom: "--max-epochs"}},
		{[]string{"/trainer", "-steps", "17408"}, nil, Assumption{Steps: 17408, StepsFrom: "-steps"}},
		{[]string{"sh", "-c", "exec python3 t.py --epochs 20 --token=s3cret"}, nil, Assumption{Epochs: 20, EpochsFrom: "--epochs"}},
		{[]string{"sh", "-c", "cd x && python3 t.py --epochs '20'; sync"}, nil, Assumption{Epochs: 20, EpochsFrom: "--epochs"}},
		{[]string{"train", "trainer.max_epochs=10", "trainer.max_steps=1e6"}, nil, Assumption{Steps: 1e6, StepsFrom: "trainer.max_steps", Epochs: 10, EpochsFrom: "trainer.max_epochs"}},
		{[]string{"EPOCHS=7", "python"}, nil, Assumption{Epochs: 7, EpochsFrom: "EPOCHS"}},
		{nil, map[string]string{"NUM_EPOCHS": "12", "MAX_STEPS": "10_000", "TOKEN": "s3cret"}, Assumption{Steps: 10000, StepsFrom: "MAX_STEPS", Epochs: 12, EpochsFrom: "NUM_EPOCHS"}},
		{[]string{"--epochs", "5"}, map[string]string{"EPOCHS": "9"}, Assumption{Epochs: 5, EpochsFrom: "--epochs"}},
		// The same number twice is one; two numbers are none, even if the environment
		// has one.
		{[]string{"--epochs", "5", "--num-epochs", "5"}, nil, Assumption{Epochs: 5, EpochsFrom: "--epochs"}},
		{[]string{"sh", "-c", "a --epochs 5 && b --epochs 50 && c --epochs 5"}, map[string]string{"EPOCHS": "9"}, Assumption{}},
		{nil, map[string]string{"EPOCHS": "9", "NUM_EPOCHS": "8"}, Assumption{}},
		// Not a number, or not such an option.
		{[]string{"--epochs", "$N", "--max_steps", "nan", "--iters=inf", "--steps", "0", "--n_steps="}, nil, Assumption{}},
		{[]string{"--epochs"}, nil, Assumption{}},
		{[]string{"epochs", "5", "--epoch", "5", "--warmup_steps", "100", "--save-steps=500", "--steps-per-epoch", "3"}, map[string]string{"NOMAD_META_EPOCHS": "3"}, Assumption{}},
	} {
		must.Eq(t, c.want, Assume(c.command, c.env), must.Sprint(c.command, c.env))
	}
}
