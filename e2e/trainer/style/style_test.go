// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package style

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

var reports = []Report{
	{Step: 20, Loss: 1.62764, Accuracy: 0.46191, TrainLoss: 1.7, GradientNorm: 0.80525, Rate: 0.00195, Elapsed: 400 * time.Millisecond, Evaluation: 2 * time.Millisecond},
	{Step: 32, Loss: 0.000512345, Accuracy: 1, TrainLoss: 1.5, GradientNorm: 2, Rate: 5e-05, Elapsed: 640 * time.Millisecond, Evaluation: 2 * time.Millisecond},
	{Step: 60, Loss: math.NaN(), Accuracy: 0.5, TrainLoss: 1.3, GradientNorm: math.Inf(1), Rate: 0.001, Elapsed: 1200 * time.Millisecond, Evaluation: 2 * time.Millisecond},
}

func play(name string, change func(*Run), reports ...Report) (stdout, stderr string) {
	run := Run{Model: "mlp", Params: 15000, Steps: 60, PerEpoch: 32, Batch: 128, HeldOut: 1024, Metric: Both}
	if change != nil {
		change(&run)
	}
	var out, err bytes.Buffer
	p := New(name, run, &out, &err)
	p.Begin()
	for _, r := range reports {
		p.Report(r)
	}
	p.Message("remark")
	p.End(reports[len(reports)-1])
	return out.String(), err.String()
}

// kerasBar is Keras's bar: step, 20 cells, clock, rest.
func kerasBar(count string, full int, clock, rest string) string {
	return "\r\x1b[1m" + count + "\x1b[0m \x1b[32m" + strings.Repeat("━", full) + "\x1b[0m\x1b[37m" + strings.Repeat("━", 20-full) +
		"\x1b[0m \x1b[1m" + clock + "\x1b[0m" + rest
}

func TestGolden(t *testing.T) {
	lossOnly := func(r *Run) { r.Metric = Loss }
	for _, c := range []struct {
		name, style string
		change      func(*Run)
		out, err    string // err "" is not compared
	}{
		{
			"huggingface", "hf", lossOnly,
			"{'loss': '1.628', 'grad_norm': '0.8053', 'learning_rate': '0.00195', 'epoch': '0.63'}\n" +
				"{'loss': '0.0005123', 'grad_norm': '2', 'learning_rate': '5e-05', 'epoch': '1'}\n" +
				"{'loss': 'nan', 'grad_norm': 'inf', 'learning_rate': '0.001', 'epoch': '1.88'}\n" +
				"{'train_runtime': '1.2', 'train_samples_per_second': '6400', 'train_steps_per_second': '50', 'train_loss': '1.5', 'epoch': '1.88'}\n",
			"\r  0%|          | 0/60 [00:00<?, ?it/s]" +
				"\r" + strings.Repeat(" ", 38) + "\r\r 33%|███▎      | 20/60 [00:00<00:00, 50.00it/s]" +
				"\r" + strings.Repeat(" ", 47) + "\r\r 53%|█████▎    | 32/60 [00:00<00:00, 50.00it/s]" +
				"\r" + strings.Repeat(" ", 47) + "\r\r100%|██████████| 60/60 [00:01<00:00, 50.00it/s]" +
				"\r" + strings.Repeat(" ", 47) + "\rremark\n\r100%|██████████| 60/60 [00:01<00:00, 50.00it/s]" +
				"\r" + strings.Repeat(" ", 47) + "\r\r100%|██████████| 60/60 [00:01<00:00, 50.00it/s]\n",
		},
		{
			"huggingface by epoch", "huggingface", func(r *Run) { r.Epochs = true },
			"{'eval_loss': '1.628', 'eval_accuracy': '0.4619', 'eval_runtime': '0.002', 'eval_samples_per_second': '5.12e+05', 'eval_steps_per_second': '500', 'epoch': '0.63'}\n" +
				"{'eval_loss': '0.0005123', 'eval_accuracy': '1', 'eval_runtime': '0.002', 'eval_samples_per_second': '5.12e+05', 'eval_steps_per_second': '500', 'epoch': '1'}\n" +
				"{'eval_loss': 'nan', 'eval_accuracy': '0.5', 'eval_runtime': '0.002', 'eval_samples_per_second': '5.12e+05', 'eval_steps_per_second': '500', 'epoch': '1.88'}\n" +
				"{'train_runtime': '1.2', 'train_samples_per_second': '6400', 'train_steps_per_second': '50', 'train_loss': '1.5', 'epoch': '1.88'}\n",
			"",
		},
		{
			"huggingface-old", "huggingface-old", lossOnly,
			"{'loss': 1.6276, 'grad_norm': 0.80525, 'learning_rate': 0.00195, 'epoch': 0.63}\n" +
				"{'loss': 0.0005, 'grad_norm': 2.0, 'learning_rate': 5e-05, 'epoch': 1.0}\n" +
				"{'loss': nan, 'grad_norm': inf, 'learning_rate': 0.001, 'epoch': 1.88}\n" +
				"{'train_runtime': 1.2, 'train_samples_per_second': 6400.0, 'train_steps_per_second': 50.0, 'train_loss': 1.5, 'epoch': 1.88}\n",
			"",
		},
		{
			"huggingface-old, accuracy", "hf-old", func(r *Run) { r.Metric = Accuracy },
			"{'eval_accuracy': 0.4619, 'eval_runtime': 0.002, 'eval_samples_per_second': 512000.0, 'eval_steps_per_second': 500.0, 'epoch': 0.63}\n" +
				"{'eval_accuracy': 1.0, 'eval_runtime': 0.002, 'eval_samples_per_second': 512000.0, 'eval_steps_per_second': 500.0, 'epoch': 1.0}\n" +
				"{'eval_accuracy': 0.5, 'eval_runtime': 0.002, 'eval_samples_per_second': 512000.0, 'eval_steps_per_second': 500.0, 'epoch': 1.88}\n" +
				"{'train_runtime': 1.2, 'train_samples_per_second': 6400.0, 'train_steps_per_second': 50.0, 'train_loss': 1.5, 'epoch': 1.88}\n",
			"",
		},
		{
			"keras", "keras", nil,
			"Epoch 1/2\n" + kerasBar("20/32", 12, "0s", " 20ms/step - accuracy: 0.4619 - loss: 1.6276") +
				strings.Repeat("\b", 73) + kerasBar("32/32", 20, "0s", " 20ms/step - accuracy: 1.0000 - loss: 5.1234e-04 - val_accuracy: 1.0000 - val_loss: 5.1234e-04\n") +
				"Epoch 2/2\n" + kerasBar("28/32", 17, "0s", " 20ms/step - accuracy: 0.5000 - loss: nan - val_accuracy: 0.5000 - val_loss: nan\n"),
			"remark\n",
		},
		{
			"keras by epoch", "keras", func(r *Run) { r.Epochs, r.Metric = true, Loss },
			"Epoch 1/2\n20/32 - 0s - 20ms/step - loss: 1.6276\n" +
				"32/32 - 1s - 20ms/step - loss: 5.1234e-04 - val_loss: 5.1234e-04\n" +
				"Epoch 2/2\n28/32 - 1s - 20ms/step - loss: nan - val_loss: nan\n",
			"remark\n",
		},
		{
			"lightning", "lightning", nil,
			"\rEpoch 0:  62%|██████▎   | 20/32 [00:00<00:00, 50.00it/s, v_num=0, train_loss=1.630, train_acc=0.462]" +
				"\rEpoch 0: 100%|██████████| 32/32 [00:00<00:00, 50.00it/s, v_num=0, train_loss=0.000512, train_acc=1.000, val_loss=0.000512, val_acc=1.000]" +
				"\rEpoch 1:  88%|████████▊ | 28/32 [00:00<00:00, 50.00it/s, v_num=0, train_loss=nan.0, train_acc=0.500, val_loss=nan.0, val_acc=0.500]\n",
			"GPU available: False, used: False\nTPU available: False, using: 0 TPU cores\n\n  | Name  | Type | Params | Mode\n" +
				"---------------------------------------\n0 | model | MLP | 15.0 K | train\nremark\n`Trainer.fit` stopped: `max_steps=60` reached.\n",
		},
		{
			"plain", "plain", nil,
			"step=20 total_steps=60 epoch=0.63 loss=1.62764 accuracy=0.4619 lr=0.00195\n" +
				"step=32 total_steps=60 epoch=1.00 loss=0.000512345 accuracy=1.0000 lr=5e-05\n" +
				"step=60 total_steps=60 epoch=1.88 loss=nan accuracy=0.5000 lr=0.001\n",
			"remark\n",
		},
		{
			"plain without end, accuracy", "plain", func(r *Run) { r.Steps, r.Metric = 0, Accuracy },
			"step=20 epoch=0.63 accuracy=0.4619 lr=0.00195\nstep=32 epoch=1.00 accuracy=1.0000 lr=5e-05\nstep=60 epoch=1.88 accuracy=0.5000 lr=0.001\n",
			"remark\n",
		},
		{
			"json", "json", nil,
			`{"step": 20, "total_steps": 60, "epoch": 0.625, "loss": 1.62764, "accuracy": 0.46191, "learning_rate": 0.00195, "elapsed_s": 0.4}` + "\n" +
				`{"step": 32, "total_steps": 60, "epoch": 1.0, "loss": 0.000512, "accuracy": 1.0, "learning_rate": 5e-05, "elapsed_s": 0.64}` + "\n" +
				`{"step": 60, "total_steps": 60, "epoch": 1.875, "loss": NaN, "accuracy": 0.5, "learning_rate": 0.001, "elapsed_s": 1.2}` + "\n",
			"remark\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			must.NoError(t, Valid(c.style))
			out, err := play(c.style, c.change, reports...)
			must.Eq(t, c.out, out)
			if c.err != "" {
				must.Eq(t, c.err, err)
			}
		})
	}

	out, err := play("silent", nil, reports...)
	must.Eq(t, "", out+err)
}

func TestWithoutEnd(t *testing.T) {
	endless := func(r *Run) { r.Steps = 0 }
	_, err := play("hf", endless, reports[0])
	must.StrContains(t, err, "\r20it [00:00, 50.00it/s]")
	out, _ := play("keras", endless, reports[1])
	must.StrHasPrefix(t, "Epoch 1/1000000\n", out)
	must.StrHasSuffix(t, "\nEpoch 2/1000000\n", out)
	out, _ = play("lightning", endless, reports[2])
	must.StrContains(t, out, "\rEpoch 1:  88%|████████▊ | 28/32 [")
}

func TestResumed(t *testing.T) {
	resumed := func(r *Run) { r.First = 40 }
	at := reports[2]
	at.Elapsed = 400 * time.Millisecond // 20 steps: 50 per second
	out, _ := play("keras", resumed, at)
	must.StrHasPrefix(t, "Epoch 2/2\n\r\x1b[1m28/32", out)
	must.StrContains(t, out, " 20ms/step")
	_, err := play("hf", resumed, at)
	must.StrHasPrefix(t, "\r 67%|██████▋   | 40/60 [00:00<?, ?it/s]", err)
	must.StrContains(t, err, "50.00it/s")
	out, _ = play("lightning", resumed, at)
	must.StrContains(t, out, "28/32 [00:00<00:00, 50.00it/s")
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0.0", 1: "1.0", 1.5: "1.5", 5e-05: "5e-05", 0.0001: "0.0001", 1e15: "1000000000000000.0", 1e16: "1e+16", -2: "-2.0"} {
		must.Eq(t, want, python(v))
	}
	must.Eq(t, "-inf", python(math.Inf(-1)))
	must.Eq(t, "-Infinity", jsonNumber(math.Inf(-1)))
	must.Eq(t, "Infinity", jsonNumber(math.Inf(1)))
	for v, want := range map[float64]string{0.5: "0.500", 120.34: "120.0", 1e-5: "1e-5", 123456: "1.23e+5", math.Inf(-1): "-inf."} {
		must.Eq(t, want, lightningNumber(v))
	}
	must.Eq(t, "1:02:03", clock(3723*time.Second))
	must.Eq(t, "1:02:03", kerasClock(3723*time.Second))
	must.Eq(t, "2:03", kerasClock(123*time.Second))
	must.Eq(t, "150us/step", kerasStep(150*time.Microsecond))
	must.Eq(t, "2s/step", kerasStep(2*time.Second))
	must.Eq(t, "1.5 M", lightningCount(1_500_000))
	must.Eq(t, "950", lightningCount(950))
	must.Eq(t, " 50%|█████     | 1/2 [00:02<00:02,  2.00s/it]", bar("", 1, 2, 0, 2*time.Second, ""))
}

func TestEpochEnd(t *testing.T) {
	r := Run{Steps: 60, PerEpoch: 32}
	for step := 1; step <= 60; step++ {
		must.Eq(t, step == 32 || step == 60, r.EpochEnd(step))
	}
	must.Eq(t, 2, r.epochs())
	must.ErrorContains(t, Valid("pytorch"), "must be one of huggingface, huggingface-old, json, keras, lightning, plain, silent")
}
