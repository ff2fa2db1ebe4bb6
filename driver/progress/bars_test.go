// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/shoenig/test/must"
)

// stepsOf returns the step reports of lines as "bar step/total", and metrics as
// "name=value step/total". A new parser continues after each line.
func stepsOf(t *testing.T, lines []string) []string {
	out := []string{}
	p := newParser(t, Config{})
	for _, line := range lines {
		if r, ok := p.Parse([]byte(line)); ok {
			name := r.Bar
			if r.StepOnly() {
				must.False(t, isSet(r.Value))
			} else {
				name = fmt.Sprintf("%s=%v", r.Metric, r.Value)
			}
			out = append(out, fmt.Sprintf("%s %.10g/%.10g", name, r.Step, r.Total))
		}
		js, err := json.Marshal(p.State())
		must.NoError(t, err)
		must.Less(t, 1024, len(js))
		var st State
		must.NoError(t, json.Unmarshal(js, &st))
		p = newParser(t, Config{})
		p.SetState(st)
	}
	return out
}

func TestParse_stepReports(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
		want  []string
	}{
		{"a nameless bar",
			[]string{" 34%|###4      | 3400/10000 [05:40<11:00, 10.0it/s]", " 35%|###5      | 3500/10000 [05:50<10:50, 10.0it/s]"},
			[]string{" 3400/10000", " 3500/10000"}},
		{"a bar with a name",
			[]string{"Training progress:  44%|####4     | 22000/50000 [09:23<08:34]", "Reading cameras:  44%|####4     | 22/50 [09:23<08:34, 9.5it/s]"},
			[]string{"Training progress 22000/50000"}},
		{"a step and its share",
			[]string{"140 (0.47%)         21.9 ms            10 m, 56 s", "300 (1.00%)         21.9 ms            10 m, 50 s", "330 (1.10%)         21.9 ms            10 m, 50 s"},
			[]string{" 140/NaN", " 300/30000", " 330/30000"}},
		{"steps in text", []string{"step 120/5000", "step 121/5000 took 12 ms"}, []string{"step 120/5000", "step 121/5000"}},
		{"epochs in text, which begin", []string{"Epoch 3/90", "Epoch 4/90"}, []string{"epoch 2/90", "epoch 3/90"}},
		{"steps within epochs, as printed", []string{"Epoch 1/2", "step 10/100", "step 90/100", "Epoch 2/2", "step 10/100"},
			[]string{"epoch 0/2", "step 10/100", "step 90/100", "epoch 1/2", "step 10/100"}},
		{"other bars", []string{
			"Loading checkpoint shards: 100%|##########| 3/3 [00:05<00:00, 1.8s/it]",
			"Map: 100%|##########| 25000/25000 [00:05<00:00, 4801.31 examples/s]",
			"Map (num_proc=8):  10%|#         | 2500/25000 [00:05<00:50, 480.3it/s]",
			"Tokenizing:  10%|#         | 2500/25000 [00:05<00:50, 480.3it/s]",
			"Generating train split: 100%|##########| 100/100 [00:05<00:00, 48.3it/s]",
			"Evaluating:  10%|#         | 5/50 [00:05<00:50, 1.0it/s]",
			"Validation DataLoader 0:  10%|#         | 5/50 [00:05<00:50, 1.0it/s]",
			"Sanity Checking DataLoader 0:  50%|#####     | 1/2 [00:05<00:50, 1.0it/s]",
			"model.safetensors: 100%|##########| 268M/268M [00:03<00:00, 80.3MB/s]",
			"Downloading (1/3)", "2025-01-01 Loading step 1/3", "Epoch 3", "10/100", "step 5"}, nil},
		{"a bar that begins again, as printed", []string{
			"  0%|          | 1/390 [00:01<06:30,  1.0it/s]", "100%|##########| 390/390 [06:30<00:00,  1.0it/s]", "  0%|          | 1/390 [00:01<06:30,  1.0it/s]"},
			[]string{" 1/390", " 390/390", " 1/390"}},
		{"a bar of one of unknown epochs", []string{"Epoch 1", " 50%|#####     | 195/390 [00:01<06:30,  1.0it/s]"}, []string{"epoch 1 195/390"}},
		{"a bar of one of the epochs", []string{"Epoch 3/90:  50%|#####     | 195/390 [00:01<06:30,  1.0it/s]"}, []string{"Epoch 975/35100"}},
		{"several bars", []string{"Frames:  50%|#####     | 5/10 [00:01<06:30,  1.0it/s]", "Training:  10%|#     | 1/10 [00:01<06:30,  1.0it/s]", "Frames:  60%|######    | 6/10 [00:01<06:30,  1.0it/s]"},
			[]string{"Frames 5/10", "Training 1/10", "Frames 6/10"}},
		{"a drawn bar of one of the epochs that count from 0", []string{"Epoch 0/4: |██----| 20.00% [100/500 00:10<00:41]", "Epoch 4/4: |██----| 20.00% [100/500 00:10<00:41]"},
			[]string{"Epoch 100/2000", "Epoch 2100/2500"}},
		{"a metric with steps", []string{"step 120/5000", "step=121 loss=0.5", "step=122 loss=0.5", "step=123 loss=0.5", "step 124/5000"},
			[]string{"step 120/5000", "loss=0.5 121/NaN", "loss=0.5 122/NaN", "loss=0.5 123/NaN", "step 124/5000"}},
		{"with a total, it is enough", []string{"step=121/5000 loss=0.5", "step=122/5000 loss=0.5", "step=123/5000 loss=0.5", "step 124/5000"},
			[]string{"loss=0.5 121/5000", "loss=0.5 122/5000", "loss=0.5 123/5000"}},
		{"a metric that comes once is not", []string{"step 120/5000", "Final accuracy: 0.5", "step 122/5000"},
			[]string{"step 120/5000", "Final accuracy=0.5 120/5000", "step 122/5000"}},
		{"JSON lines", []string{`{"step": 3, "total_steps": 10}`, `{"step": "4/10"}`, `{"global_step/max_steps": "5/10"}`, `{"epoch": 3, "epochs": 10}`, `{"epochs": 10, "max_steps": 100}`},
			[]string{"step 3/10", "step 4/10", "step 5/10", "epoch 3/10"}},
		{"pairs", []string{"iter: 10 max_iters: 100", "step=3 mem total=16384"}, []string{"step 10/100"}},
		{"a table", []string{"step,total,host", "3,10,a", "4,10,a", "a,b,c"}, []string{"step 3/10", "step 4/10"}},
		{"ranks", []string{"0: step 120/5000", "1: step 120/5000", "0: step 121/5000"}, []string{"step 120/5000", "step 121/5000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			must.SliceEqOp(t, c.want, stepsOf(t, c.lines))
		})
	}
}
