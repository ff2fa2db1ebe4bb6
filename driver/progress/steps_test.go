// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"testing"

	"github.com/shoenig/test/must"
)

// TestParse_rounds has counters that begin again or do not count what they seem to.
func TestParse_rounds(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
		want  []string
	}{
		{"a full bar begins again", []string{"step 50/100 loss 0.5", "step 100/100 loss 0.4", "step 10/100 loss 0.3"},
			[]string{"loss=0.5 50/100", "loss=0.4 100/100", "loss=0.3 110/NaN"}},
		{"a restart from a checkpoint, shortly before the end", []string{"step 800/1000 loss 0.5", "step 900/1000 loss 0.4", "step 400/1000 loss 0.5"},
			[]string{"loss=0.5 800/1000", "loss=0.4 900/1000", "loss=0.5 400/1000"}},
		{"a restart in the last epoch", []string{"Epoch 3/3 step 90/100 loss 0.5", "Epoch 1/3 step 10/100 loss 0.5"},
			[]string{"loss=0.5 290/300", "loss=0.5 10/300"}},
		{"another training after the last epoch", []string{"Epoch 3/3 step 100/100 loss 0.5", "Epoch 1/3 step 10/100 loss 0.5", "loss 0.4", "Epoch 1/3 step 20/100 loss 0.4"},
			[]string{"loss=0.5 300/300", "loss=0.5 NaN/NaN", "loss=0.4 NaN/NaN", "loss=0.4 NaN/NaN"}},
		{"one epoch again and again", []string{"Epoch 1/1", "10/10 - 1s - loss: 0.5", "Epoch 1/1", "5/10 - 1s - loss: 0.4"},
			[]string{"epoch 0/1", "loss=0.5 10/10", "epoch 0/1", "loss=0.4 NaN/NaN"}},
		{"folds", []string{"Fold 1/5", "epoch 1/2 loss 0.5", "epoch 2/2 loss 0.4", "Fold 2/5", "epoch 1/2 loss 0.6"},
			[]string{"loss=0.5 1/NaN", "loss=0.4 2/NaN", "loss=0.6 NaN/NaN"}},
		{"the length of an epoch", []string{"Epoch 1 | Steps: 235 | Loss: 0.5", "Epoch 2 | Steps: 235 | Loss: 0.4", "Epoch 3 | Steps: 235 | Loss: 0.3"},
			[]string{"Loss=0.5 235/NaN", "Loss=0.4 235/NaN", "Loss=0.3 705/NaN"}},
		{"a step that stays over an epoch's end", []string{"Epoch 1 step 90 loss 0.5", "Epoch 1 step 100 loss 0.5", "Epoch 2 step 100 loss 0.5", "Epoch 2 step 110 loss 0.5"},
			[]string{"loss=0.5 90/NaN", "loss=0.5 100/NaN", "loss=0.5 100/NaN", "loss=0.5 110/NaN"}},
		{"pairs of epoch and batch", []string{"Batch 0/100 loss 0.5", "Batch 0/200 loss 0.5", "Batch 0/300 loss 0.5", "Batch 1/100 loss 0.5"},
			[]string{"loss=0.5 0/100", "loss=0.5 0/200", "loss=0.5 300/NaN", "loss=0.5 400/NaN"}},
		{"batches of training and validation", []string{"Batch 0/100 loss 0.5", "Batch 0/20 loss 0.5", "Batch 0/100 loss 0.5", "Batch 0/20 loss 0.5"},
			[]string{"loss=0.5 0/100", "loss=0.5 0/20", "loss=0.5 0/100", "loss=0.5 0/20"}},
		{"a nameless bar in every epoch", []string{"100%|####| 938/938 [00:10<00:00, 93.8it/s]", "Epoch 1/10 loss 0.5", "100%|####| 938/938 [00:10<00:00, 93.8it/s]", "Epoch 2/10 loss 0.4"},
			[]string{" 938/938", "loss=0.5 1/10", " 938/938", "loss=0.4 2/10"}},
		{"brackets before a colon", []string{"Epoch [1/5]: Step [10/100]: loss [1-10]: 0.5", "Epoch [2]: loss (avg): 0.4"},
			[]string{"loss=0.5 10/500", "loss=0.4 200/500"}},
		{"a global step beside epochs", []string{"Epoch 1/3 global_step 100/5000 loss 0.5", "Epoch 2/3 global_step 200/5000 loss 0.5"},
			[]string{"loss=0.5 100/5000", "loss=0.5 200/5000"}},
		{"counters in strings", []string{`{'loss': 0.5, 'epoch': 0.1, 'global_step/max_steps': '5/94'}`, `{"loss": 0.5, "epoch": "2/10", "iter": "10/50"}`},
			[]string{"loss=0.5 5/94", "loss=0.5 60/500"}},
		{"a table of one trial", []string{"| Trial name | iter | loss |", "| a_1 | 1 | 0.5 |", "+-----------", "| Trial name | iter | loss |", "| a_1 | 2 | 0.4 |", "+-----------"},
			[]string{"loss=0.5 1/NaN", "loss=0.4 2/NaN"}},
		{"settings", []string{`{"epochs": 3, "max_steps": -1, "target_loss": 0.2}`}, nil},
		{"a loss before the training", []string{"init loss: 912.5", "step 10 loss: 0.5"}, []string{"loss=0.5 10/NaN"}},
		{"a message", []string{`{"log":"step 10/100 loss: 0.5\n","stream":"stdout"}`, `{"message":"loss: 0.5"}`}, []string{"loss=0.5 10/100"}},
		{"a drawn bar", []string{"Epoch 1/3 [====>     ] 160/640 loss 0.5", "Epoch 2/3 [====>     ] 160/640 loss 0.5"},
			[]string{"loss=0.5 160/1920", "loss=0.5 800/1920"}},
		{"per cents of something", []string{"GPU memory [#######   ]  70%", "GPU memory [########  ]  80%", "model.bin ━━━━━━━━━━━━ 40% 12.3/45.6 MB 1.2 MB/s",
			"Downloading [####      ] 40%", "this epoch [####      ] 24.08%", "this epoch [#####     ] 26.08%", "[训练轮次训练轮次] 3/10"}, nil},
		{"per cents of the training", []string{"Training [####      ]  40%", "Training [#####     ]  50%", "Progress: 60%", "Progress: 61%"}, []string{"Training 40/100", "Training 50/100", "Progress 60/100", "Progress 61/100"}},
		{"a pod before the line", []string{"mnist-worker-0 step 1 loss 0.5", "mnist-worker-1 step 1 loss 0.6", "mnist-worker-0 step 2 loss 0.4"},
			[]string{"loss=0.5 1/NaN", "loss=0.4 2/NaN"}},
		{"steps in lines of their own", []string{"Iteration: 100, 0.2 s", "loss: 0.5", "Iteration: 200, 0.2 s", "loss: 0.4", "loss: 0.3", "Iteration: 300, 0.2 s", "loss: 0.2", "Iteration: 400, 0.2 s", "loss: 0.1"},
			[]string{"loss=0.5 NaN/NaN", "loss=0.4 200/NaN", "loss=0.3 200/NaN", "loss=0.2 200/NaN", "loss=0.1 400/NaN"}},
		{"epochs in lines of their own", []string{"fps 5 epoch: 1/9 frames: 7", "loss: 0.5", "fps 5 epoch: 2/9 frames: 8", "loss: 0.4"}, []string{"loss=0.5 NaN/NaN", "loss=0.4 2/9"}},
		{"checkpoints between some of the lines", []string{"Saved at step 500", "loss: 0.5", "loss: 0.4", "Saved at step 1000", "loss: 0.3", "loss: 0.2", "Saved at step 1500", "loss: 0.1"},
			[]string{"loss=0.5 NaN/NaN", "loss=0.4 NaN/NaN", "loss=0.3 NaN/NaN", "loss=0.2 NaN/NaN", "loss=0.1 NaN/NaN"}},
		{"a bar that has the steps", []string{"all:  10%|#    | 100/1000 [00:01<00:09, 9.5step/s]", "step 100: loss 0.5", "all:  20%|##   | 200/1000 [00:01<00:09, 9.5step/s]", "step 200: loss 0.4"},
			[]string{"all 100/1000", "loss=0.5 100/NaN", "all 200/1000", "loss=0.4 200/1000"}},
		{"a bar that has other steps", []string{"all:  10%|#    | 100/1000 [00:01<00:09, 9.5step/s]", "step 100: loss 0.5", "all:  20%|##   | 200/1000 [00:01<00:09, 9.5step/s]", "step 400: loss 0.4"},
			[]string{"all 100/1000", "loss=0.5 100/NaN", "all 200/1000", "loss=0.4 400/NaN"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			must.SliceEqOp(t, c.want, stepsOf(t, c.lines))
		})
	}

	p := newParser(t, Config{})
	lines := []string{"| Trial name | iter | loss |", "| a_1 | 12 | 0.5 |", "| a_2 | 9 | 0.7 |", "| a_1 | 13 | 0.4 |", "+-----------"}
	must.SliceEmpty(t, parse(p, lines...)) // none of several trials is the job

	p = newParser(t, Config{})
	must.SliceEmpty(t, parse(p, "step 1 policy_loss -0.5", "step 2 policy_loss 0.5"))
}
