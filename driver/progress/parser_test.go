// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func newParser(t testing.TB, c Config) *Parser {
	p, err := NewParser(c)
	must.NoError(t, err)
	return p
}

// parse returns the metric's reports of lines as "step/total name=value" each.
func parse(p *Parser, lines ...string) []string {
	out := []string{}
	n := func(v float64) string {
		if !isSet(v) {
			return "-"
		}
		return fmt.Sprintf("%.10g", v)
	}
	for _, line := range lines {
		if r, ok := p.Parse([]byte(line)); ok && !r.StepOnly() {
			out = append(out, fmt.Sprintf("%s/%s %s=%v", n(r.Step), n(r.Total), r.Metric, r.Value))
		}
	}
	return out
}

func TestParse_lines(t *testing.T) {
	for _, c := range []struct {
		config Config
		line   string
		want   string
	}{
		{Config{}, "loss=0.5", "-/- loss=0.5"},
		{Config{}, "loss: 1e-4", "-/- loss=0.0001"},
		{Config{}, "loss = -3", "-/- loss=-3"},
		{Config{}, "loss => 3.5", "-/- loss=3.5"},
		{Config{}, "loss:nan", "-/- loss=NaN"},
		{Config{}, "loss inf", "-/- loss=+Inf"},
		{Config{}, "Loss: -Infinity", "-/- Loss=-Inf"},
		{Config{}, "loss 0.5 (0.6)", "-/- loss=0.5"},
		{Config{}, "loss (avg): 0.5", "-/- loss=0.5"},
		{Config{}, "loss: [0.5]", "-/- loss=0.5"},
		{Config{}, "accuracy: 97.5%", "-/- accuracy=97.5"},
		{Config{}, "Accuracy: 9913/10000 (99%)", "-/- Accuracy=0.9913"},
		{Config{}, "loss: tensor(0.5, device='cuda:0')", "-/- loss=0.5"},
		{Config{}, `"loss": "0.5"`, "-/- loss=0.5"},
		{Config{}, "{'loss': np.float64(0.5), 'step': 3}", "3/- loss=0.5"},
		{Config{}, "损失 loss=0.5 é", "-/- loss=0.5"},
		{Config{}, "\xff\xfeloss=0.5\xff", "-/- loss=0.5"},
		{Config{Metric: "loss"}, "loss_scale=65536 my_loss=1.0 lossy=2.0 train/loss=3.0 x-loss=4.0", ""},
		{Config{Metric: "loss"}, "LOSS=0.5", "-/- LOSS=0.5"},
		{Config{Metric: "loss"}, "val loss 4.1", ""},
		{Config{Metric: "loss"}, "train loss 4.2, val loss 4.1", "-/- train loss=4.2"},
		{Config{Metric: "val loss"}, "train loss 4.2, val loss 4.1", "-/- val loss=4.1"},
		{Config{Metric: "lr"}, "loss=1.0 lr=0.1", "-/- lr=0.1"},
		{Config{Metric: "foo_bar"}, "step 3 foo_bar 7.5", "3/- foo_bar=7.5"},
		{Config{Metric: "foo"}, "foo 7", ""}, // a bare integer after a word is prose
		{Config{Metric: "foo"}, "foo: 7", "-/- foo=7"},
		{Config{Metric: "train/loss"}, "train/loss: 0.5", "-/- train/loss=0.5"},
		{Config{Metric: "policy gradient loss"}, "step: 5 policy gradient loss: 0.5", "5/- policy gradient loss=0.5"},
		{Config{Metric: "gradient loss"}, "policy_gradient loss: 0.5", ""},
		{Config{Metric: "损失"}, "第3步 损失: 0.5", "-/- 损失=0.5"},
		{Config{Metric: "total"}, "step: 3 total: 10", "3/- total=10"},
		{Config{Metric: "pass"}, `{"step": 3, "pass": 0.5}`, "3/- pass=0.5"},
		{Config{Metric: "val.loss"}, `{"step":1,"train":{"loss":1},"val":{"loss":2}}`, "1/- val.loss=2"},
		{Config{Metric: "loss"}, `{"step":1,"train":{"loss":1},"val":{"loss":2}}`, "1/- train.loss=1"},
		{Config{Metric: "Validation loss"}, "Validation: loss: 0.5, acc: 0.9", "-/- Validation loss=0.5"},
		{Config{}, "step=10 loss=0.5", "10/- loss=0.5"},
		{Config{}, "step 1_000 loss 0.5", "1000/- loss=0.5"},
		{Config{}, "step 10/100: loss 0.5", "10/100 loss=0.5"},
		{Config{}, "global_step=7 loss=0.5 max_steps=70", "7/70 loss=0.5"},
		{Config{}, "iter: 10 loss: 0.5 total_iters: 1,500", "10/1500 loss=0.5"},
		{Config{}, "batch 3/9 loss 0.5", "3/9 loss=0.5"},
		{Config{}, "epoch 3 loss 0.5", "3/- loss=0.5"},
		{Config{}, "Epoch 3/10 - loss: 0.5", "3/10 loss=0.5"},
		{Config{}, "epoch=2/5 batch=10/100 loss=0.5", "110/500 loss=0.5"},
		{Config{}, `{"iter": 5, "loss": 0.5, "max_iters": 50}`, "5/50 loss=0.5"},
		{Config{}, `{"step":-1,"loss":0.5}`, "-/- loss=0.5"},
		{Config{}, `{"step":1e300,"loss":0.5}`, "-/- loss=0.5"},
		{Config{}, "time/step: 0.5 loss: 0.25", "-/- loss=0.25"},
		{Config{}, "step=3 total=10 loss=0.5", "3/10 loss=0.5"},
		{Config{}, "loss=0.5 step=3 total=10", "3/10 loss=0.5"},
		{Config{}, `{"step": 3, "loss": 0.5, "total": 10}`, "3/10 loss=0.5"},
		{Config{}, "total=10 loss=0.5", "-/- loss=0.5"},                    // of unknown things
		{Config{}, "step=30 total=10 loss=0.5", "30/- loss=0.5"},           // not of steps
		{Config{}, "step=3 mem total=16384 loss=0.5", "3/- loss=0.5"},      // of something else
		{Config{}, "step=3 total=2.5 loss=0.5", "3/- loss=0.5"},            // a sum
		{Config{}, "Step 3 of 10: loss 0.5", "3/10 loss=0.5"},              //
		{Config{}, "12: loss 0.5", "-/- loss=0.5"},                         // an index or a rank
		{Config{}, "12: learn: 0.5 test: 0.6", "12/- learn=0.5"},           // an index
		{Config{}, "12:30 loss 0.5", "-/- loss=0.5"},                       // a time
		{Config{}, "step: 86.5 loss: 0.5", "-/- loss=0.5"},                 // seconds
		{Config{}, "the training loss is 0.5", "-/- training loss=0.5"},    //
		{Config{}, "loss train: 0.5, loss val: 0.6", "-/- loss train=0.5"}, //
		{Config{}, "iteration=4 global_step=128 loss=0.5", "128/- loss=0.5"},
		{Config{}, "[05/20 18:13:49] loss: 0.5", "-/- loss=0.5"},
		{Config{}, "12/31 10:00:00 loss: 0.5", "-/- loss=0.5"},
		{Config{}, "2025/01/02 10:00 loss: 0.5", "-/- loss=0.5"},
		{Config{}, "Steps:  10%|█| 1.00k/5.00k [00:01<00:09, 9.5it/s, loss=0.5]", "1000/5000 loss=0.5"},
		{Config{}, "50% 1/2 [00:00<00:00, 6.54it/s, loss=2.29]", "1/2 loss=2.29"},
		{Config{}, "13440/Unknown - 2s - loss: 0.8068", "13440/- loss=0.8068"},
		{Config{}, "val_loss: 0.4 - loss: 0.5 - accuracy: 0.9", "-/- loss=0.5"},
		{Config{}, "accuracy=0.9 val_loss=0.4", "-/- val_loss=0.4"},
		{Config{}, "a_loss=1.0 b_loss=2.0 loss=3.0", "-/- loss=3"},
		{Config{}, "acc=0.5 ppl=30.1", "-/- ppl=30.1"},
		{Config{}, "best_loss=0.1 accuracy=0.5", "-/- accuracy=0.5"},
		{Config{}, "lr: 0.1, learning rate: 0.1, learning_rate=0.1, base_lr 0.1", ""},
		{Config{}, "Policy loss: 0.1, value function loss: 0.2, mean reward: 5", "-/- mean reward=5"},
		{Config{}, "[Learner] Critic Loss = 0.5 | Policy Loss = -1.5 | Steps = 100", "100/- Critic Loss=0.5"},
		{Config{}, "step:12K ep:4 loss:0.5", "12000/- loss=0.5"},
		{Config{}, "best val loss 0.1, val loss 0.5", "-/- val loss=0.5"},
		{Config{}, "loss: 0.5 (best: 0.1) acc: 0.9", "-/- loss=0.5"},
		{Config{}, "best loss: 0.1 at epoch 3, epoch 5 loss: 0.5", "5/- loss=0.5"},
		{Config{Metric: "val loss"}, "best val loss 0.1", ""},
		{Config{Metric: "val loss"}, "best val loss 0.1, val loss 0.5", "-/- val loss=0.5"},
		{Config{Metric: "val loss"}, "val loss 0.5, lowest val loss 0.1", "-/- val loss=0.5"},
		{Config{Metric: "loss"}, "best loss: 0.1", ""},
		{Config{Metric: "val loss"}, `{"best val loss": 0.1}`, ""},
		{Config{Metric: "val loss"}, `{"best val loss": 0.1, "val loss": 0.5}`, "-/- val loss=0.5"},
		{Config{Metric: "val_loss"}, `{"best": {"val_loss": 0.1}}`, ""},
		{Config{Metric: "val_loss"}, `{"best": {"val_loss": 0.1}, "val_loss": 0.5}`, "-/- val_loss=0.5"},
		{Config{Metric: "best val loss"}, "best val loss 0.1, val loss 0.5", "-/- best val loss=0.1"},
		{Config{Metric: "best.val_loss"}, `{"best": {"val_loss": 0.1}}`, "-/- best.val_loss=0.1"},
		{Config{}, "Test set: Average loss: 0.0265, Accuracy: 9913/10000", "-/- Average loss=0.0265"},
		{Config{}, "packet loss: 0.5%", ""},
		{Config{}, "0 | step 5 loss 0.5", "5/- loss=0.5"},
		{Config{}, "loss0.571-|", "-/- loss=0.571"},
		{Config{}, "cuda0.5 loss3", ""},
		{Config{}, "train 5.00it/70.0it rate:76.8s/it postfix:loss=9.41", "5/70 loss=9.41"},
		{Config{}, "7 4.03 s run, 10.5 loss, 0.001 LR, 5.5 GB", "7/- loss=10.5"},
		{Config{}, "took 3.5 steps, 0.5 loss of time", ""},
		{Config{}, "loss in epoch 2 iteration 45: 1.5", "45/- loss=1.5"},
		{Config{}, "Step 200: train CrossEntropyLoss |  5.25", "200/- train CrossEntropyLoss=5.25"},
		{Config{}, "Epoch 1: loss | 5.25 | 3.5", ""},
		{Config{}, "[INFO] 20, train_loss=0.25", "20/- train_loss=0.25"},
		{Config{}, "Episode: 64, Avg. reward: -19.6", "64/- reward=-19.6"},
		{Config{}, "episode 64/100 max_steps=5000 reward: -19.6", "64/100 reward=-19.6"},
		{Config{}, "fps step: 104856 epoch: 3/1000 rewards: 5.5", "3/1000 rewards=5.5"},
		{Config{}, "step:1421 episode:11 R:-391.8", "1421/- R=-391.8"},
		{Config{}, "1234 root R 100.0 3.4", ""},
		{Config{}, "epoch 2 acc class : 69.5", "2/- acc class=69.5"},
		{Config{}, "30/42 of epoch 1/30 acc: 65.5", "30/1260 acc=65.5"},
		{Config{}, "train, round, loss ===> 002, 0.84, 0.34", ""},
		{Config{}, `{"step": [1, 400], "data": {"loss": 5.5}}`, "400/- data.loss=5.5"},
		{Config{}, "step 5 total_steps=4 loss 0.5", "5/- loss=0.5"},
		{Config{}, "0: ", ""},
		{Config{}, "loss: 1,234", ""}, // in some locales 1.234
		{Config{}, "iter: 1,002,500 loss: 0.5", "1002500/- loss=0.5"},
		{Config{}, "iter 12,400/50,000 loss 0.5", "12400/50000 loss=0.5"},
		{Config{}, "step 140 (0.47%) loss 0.5", "140/- loss=0.5"}, // 29,500 to 30,200
		{Config{}, "loss >= 0.5", ""},
		{Config{}, `{"name": "loss", "value": 3.5, "step": 4}`, "4/- loss=3.5"},
		{Config{}, `{"name": "loss", "state": "on"}`, ""},
		{Config{Metric: "zeta"}, `{"key": "zeta", "value": 3}`, "-/- zeta=3"},
		{Config{}, "lr=0.1 time=3.5 loss_scale=2", ""},
		{Config{}, "no loss 3", ""},
		{Config{}, "loss: none", ""},
		{Config{}, "loss: 2ms", ""},
		{Config{}, "HTTP 500 error=3", ""},
		{Config{}, `{"msg":"loss: 0.5","level":"info"}`, ""},
		{Config{}, `{"loss":[0.5,0.6]}`, ""},
		{Config{}, `{"loss":null}`, ""},
		{Config{}, "{", ""},
		{Config{}, `{"`, ""},
		{Config{}, `{"loss`, ""},
		{Config{}, `{"loss":`, ""},
		{Config{}, `{"loss":0.5`, "-/- loss=0.5"}, // truncated by rotation
		{Config{}, `{"a\"loss":1,"loss":0.5}`, "-/- loss=0.5"},
		{Config{}, `{"a":{"b":{"c":{"d":{"e":{"f":{"g":{"h":1}}}}}}},"loss":0.5}`, "-/- loss=0.5"},
		{Config{}, `{"list":[{"x":1},{"y":2}],"loss":0.5}}}`, "-/- loss=0.5"},
		{Config{Preset: "keras"}, "step=1 loss=0.5", ""},
		{Config{Preset: "lightning"}, " 10%|█| 10/100 [00:01<00:09, 9.5it/s, loss=0.5]", ""},
		{Config{Preset: "lightning"}, "Epoch 0: 10%|█| 10/100 [00:01<00:09, 9.5it/s, loss=0.5]", "10/- loss=0.5"},
		{Config{Preset: "tqdm"}, "loss=0.5", ""},
		{Config{Preset: "jsonl"}, "loss=0.5", ""},
		{Config{Preset: "huggingface"}, "loss=0.5", ""},
		{Config{Preset: "plain"}, "loss=0.5", "-/- loss=0.5"},
		{Config{Pattern: `E=(?P<value>\S+) at (?P<step>\S+)/(?P<total>\S+)`}, "E=-1.5e3 at 1,000/5_000 x", "1000/5000 value=-1500"},
		{Config{Pattern: `(?P<value>[\d.]+) ?%`, Metric: "top1"}, "97.5 %", "-/- top1=97.5"},
		{Config{Pattern: `E=(?P<value>\S*)( (?P<step>\d+))?`}, "E=nan", "-/- value=NaN"},
		{Config{Pattern: `E=(?P<value>\S*)`}, "E=", ""},
		{Config{Pattern: `E=(?P<value>\S*)`}, "E=0x10", ""},
		{Config{Pattern: `E=(?P<value>\S*) (?P<step>\S+)`}, "E=1 -5", "-/- value=1"},
	} {
		got := strings.Join(parse(newParser(t, c.config), c.line), "; ")
		must.Eq(t, c.want, got, must.Sprintf("%+v: %s", c.config, c.line))
	}
}

func TestParse_series(t *testing.T) {
	repeat := func(n int, format string) (out []string) {
		for i := 1; i <= n; i++ {
			out = append(out, fmt.Sprintf(format, i))
		}
		return out
	}
	join := func(parts ...[]string) (out []string) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	for _, c := range []struct {
		name   string
		config Config
		lines  []string
		want   []string
	}{
		{"a restart goes back", Config{},
			[]string{"step=10 loss=0.5", "step=20 loss=0.4", "step=5 loss=0.6", "step=15 loss=0.5"},
			[]string{"10/- loss=0.5", "20/- loss=0.4", "5/- loss=0.6", "15/- loss=0.5"}},
		{"a step that starts again with every epoch", Config{},
			[]string{"epoch 1 step 50 loss 3.0", "epoch 1 step 100 loss 2.0", "epoch 2 step 50 loss 1.5", "epoch 2 step 100 loss 1.4", "epoch 3 step 50 loss 1.0"},
			[]string{"50/- loss=3", "100/- loss=2", "150/- loss=1.5", "200/- loss=1.4", "250/- loss=1"}},
		{"a step that continues across epochs", Config{},
			[]string{"epoch 1 step 50 loss 3.0", "epoch 1 step 100 loss 2.0", "epoch 2 step 150 loss 1.5"},
			[]string{"50/- loss=3", "100/- loss=2", "150/- loss=1.5"}},
		{"a position of the whole, with the epoch next to it", Config{},
			[]string{"Epoch 1 Step [50/300] loss: 3.0", "Epoch 1 Step [90/300] loss: 2.0", "Epoch 2 Step [130/300] loss: 1.5", "Epoch 3 Step [230/300] loss: 1.0"},
			[]string{"50/- loss=3", "90/- loss=2", "130/300 loss=1.5", "230/300 loss=1"}},
		{"epoch lines between batches", Config{},
			[]string{"Epoch [1/2], Step [100/200], Loss: 0.5", "Epoch [1/2], Step [200/200], Loss: 0.4", "Epoch [1/2] Loss: 0.45", "Epoch [2/2], Step [100/200], Loss: 0.3"},
			[]string{"100/400 Loss=0.5", "200/400 Loss=0.4", "200/400 Loss=0.45", "300/400 Loss=0.3"}},
		{"a bar over epochs", Config{},
			[]string{"Epoch 1/3:  33%|█| 1/3 [00:01<00:02, 1.0s/it, loss=0.5]", "Epoch 2/3:  66%|█| 2/3 [00:01<00:02, 1.0s/it, loss=0.4]"},
			[]string{"1/3 loss=0.5", "2/3 loss=0.4"}},
		{"a bar that is restarted before it was full", Config{},
			[]string{" 10%|█| 10/100 [00:01<00:09, 9it/s, loss=0.5]", " 20%|█| 20/100 [00:01<00:09, 9it/s, loss=0.4]", "  5%|█| 5/100 [00:01<00:09, 9it/s, loss=0.6]"},
			[]string{"10/100 loss=0.5", "20/100 loss=0.4", "5/100 loss=0.6"}},
		{"epochs from 0 with the last one in the total", Config{},
			[]string{"Epoch 0/1 loss: 0.5", "Epoch 1/1 loss: 0.4"},
			[]string{"0/1 loss=0.5", "1/2 loss=0.4"}},
		{"validation before training", Config{},
			[]string{"val_loss=5.0", "step=1 loss=4.0", "step=2 loss=3.0"},
			[]string{"-/- val_loss=5", "1/- loss=4", "2/- loss=3"}},
		{"a better metric must keep coming", Config{},
			[]string{"acc=0.1", "acc=0.2", "acc=0.3", "loss=1.0", "acc=0.4", "loss=0.9", "acc=0.5", "loss=0.8", "loss=0.7"},
			[]string{"-/- acc=0.1", "-/- acc=0.2", "-/- acc=0.3", "-/- acc=0.4", "-/- acc=0.5", "-/- loss=0.8", "-/- loss=0.7"}},
		{"validation in between is another metric", Config{},
			[]string{"step=1 loss=1.0", "Validation: loss: 2.0", "step=2 loss=0.9", "val_loss=2.0"},
			[]string{"1/- loss=1", "2/- loss=0.9"}},
		{"the format changes", Config{},
			join(repeat(4, "step=%d loss=0.5"), repeat(30, `{"step":%d,"loss":0.25}`)),
			join(repeat(4, "%d/- loss=0.5"), repeat(30, "%d/- loss=0.25")[19:])},
		{"a worse metric wins only after long", Config{},
			join(repeat(4, "step=%d loss=0.5"), repeat(399, "step=%d acc=0.25")), repeat(4, "%d/- loss=0.5")},
		{"but it does", Config{},
			join(repeat(4, "step=%d loss=0.5"), repeat(400, "step=%d acc=0.25")),
			append(repeat(4, "%d/- loss=0.5"), "400/- acc=0.25")},
		{"Hugging Face: an evaluation's bar is not the trainer's", Config{},
			[]string{" 10%|█| 10/100 [00:01<00:09, 9.5it/s]", "{'loss': 0.5, 'epoch': 0.1}", " 50%|█| 5/10 [00:01<00:09, 9.5it/s]", "{'loss': 0.4, 'epoch': 0.2}", " 20%|█| 20/100 [00:01<00:09, 9.5it/s]", "{'loss': 0.3, 'epoch': 0.3}"},
			[]string{"10/100 loss=0.5", "10/100 loss=0.4", "20/100 loss=0.3"}},
		{"Hugging Face: a second training", Config{},
			[]string{"100%|█| 10/10 [00:01<00:09, 9.5it/s]", "{'loss': 0.5}", " 5%|█| 5/100 [00:01<00:09, 9.5it/s]", "{'loss': 0.4}", " 6%|█| 6/100 [00:01<00:09, 9.5it/s]", "{'loss': 0.3}", " 7%|█| 7/100 [00:01<00:09, 9.5it/s]", "{'loss': 0.2}"},
			[]string{"10/10 loss=0.5", "10/10 loss=0.4", "6/100 loss=0.3", "7/100 loss=0.2"}},
		{"Hugging Face: the epoch's fraction is more exact than the bar, and the summary is none", Config{},
			[]string{"  Num Epochs = 2", "  0%|█| 0/100 [00:01<00:09, 9.5it/s]", "{'loss': 0.7, 'epoch': 0.0}", "{'loss': 0.5, 'epoch': 0.5}", "{'loss': 0.4, 'epoch': 2.0}", "{'train_runtime': 2.5, 'train_loss': 0.55, 'epoch': 2.0}"},
			[]string{"0/100 loss=0.7", "25/100 loss=0.5", "100/100 loss=0.4"}},
		{"a restart some epochs back", Config{},
			[]string{"epoch 1 step 9 loss 3.0", "epoch 2 step 5 loss 2.0", "epoch 1 step 5 loss 2.5", "epoch 1 step 9 loss 2.25", "epoch 2 step 5 loss 1.5"},
			[]string{"9/- loss=3", "14/- loss=2", "5/- loss=2.5", "9/- loss=2.25", "14/- loss=1.5"}},
		{"a table", Config{},
			[]string{"epoch  train_loss  valid_loss", "0  0.5  0.6", "1  0.4  0.5", "1 2 3 4", "a  b  c"},
			[]string{"0/- train_loss=0.5", "1/- train_loss=0.4"}},
		{"a table with what is wanted in another column, and gaps", Config{Metric: "valid loss"},
			[]string{"Step      Train Loss   Valid Loss     LR", "  10          0.5000                0.001", "  20          0.4000       0.6000   0.001"},
			[]string{"20/- Valid Loss=0.6"}},
		{"a table of a metric that is asked for only", Config{Metric: "zeta"},
			[]string{"| iter | zeta | loss |", "|------|------|------|", "| 1/5  | 7    | 0.5  |"},
			[]string{"1/5 zeta=7"}},
		{"a box", Config{Metric: "reward"},
			[]string{"+--------------+", "| reward | 1.5 |", "| lr     | 0.1 |", "| step   |  10 |", "+--------------+"},
			[]string{"10/- reward=1.5"}},
		{"what a header says of the step", Config{},
			[]string{"[step=5/100]", "train/loss=0.5", "Saved at step=5", "train/loss=0.4"},
			[]string{"5/100 train/loss=0.5", "5/100 train/loss=0.4"}},
		{"an epoch in a header", Config{},
			[]string{"Epoch 1", "loss: 0.5", "val_loss: 0.6", "Epoch 2", "loss: 0.4"},
			[]string{"1/- loss=0.5", "2/- loss=0.4"}},
		{"a number in front that rises by one is the step once it proves to be no rank", Config{},
			repeat(20, "%d: loss 0.5"), join(slices.Repeat([]string{"-/- loss=0.5"}, 16), repeat(20, "%d/- loss=0.5")[16:])},
		{"a number in front that stays the same is a rank", Config{},
			slices.Repeat([]string{"3: loss 0.5"}, 6), slices.Repeat([]string{"-/- loss=0.5"}, 6)},
		{"ranks in order are no step, for long", Config{},
			slices.Repeat(repeat(20, "%d: loss 0.5"), 3), append(slices.Repeat([]string{"-/- loss=0.5"}, 16),
				"17/- loss=0.5", "18/- loss=0.5", "19/- loss=0.5", "20/- loss=0.5", "-/- loss=0.5", "-/- loss=0.5")},
		{"the next rank is followed when one has ended", Config{},
			append(repeat(2, "[rank0]: step %d loss 0.5"), repeat(52, "[rank1]: step %d loss 0.5")...),
			[]string{"1/- loss=0.5", "2/- loss=0.5", "51/- loss=0.5", "52/- loss=0.5"}},
		{"folds are no ranks", Config{},
			[]string{"[fold1]: epoch 1 loss 0.5", "[fold1]: epoch 2 loss 0.4", "[fold2]: epoch 1 loss 0.5"},
			[]string{"1/- loss=0.5", "2/- loss=0.4", "1/- loss=0.5"}},
		{"lines with a number of their own are a rank's", Config{},
			[]string{"0: step 5 loss 0.5", "1: step 5 loss 0.6", "0: step 6 loss 0.4", "1: step 6 loss 0.5"},
			[]string{"5/- loss=0.5", "6/- loss=0.4"}},
		{"the reward rather than the loss", Config{},
			[]string{"step=1 loss=0.5 reward=7.0", "step=2 reward=7.5", "step=3 loss=0.4"}, []string{"1/- reward=7", "2/- reward=7.5"}},
		{"a reward model has a loss", Config{},
			[]string{"step=1 loss=0.5 mean_reward=7.0 accuracy=0.5"}, []string{"1/- loss=0.5"}},
		{"a share within an epoch is not that of the whole", Config{},
			[]string{"Epoch 2", "step 210 (35.0%) loss 0.5"}, []string{"210/- loss=0.5"}},
		{"a total said once", Config{},
			[]string{"max_steps: 500", "step 5 loss 0.5", "loss 0.4", "step 6 loss 0.3"},
			[]string{"5/500 loss=0.5", "5/500 loss=0.4", "6/500 loss=0.3"}},
		{"a total of a pattern said once", Config{Pattern: `((?P<step>\d+)/)?(?P<total>\d+)? E=(?P<value>\S+)`},
			[]string{"1/9 E=1", "2/ E=2"},
			[]string{"1/9 value=1", "2/9 value=2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			must.Eq(t, c.want, parse(newParser(t, c.config), c.lines...))
		})
	}
}

// A parser restored from state in the middle continues seamlessly, wherever the cut is.
func TestParser_State(t *testing.T) {
	files, err := filepath.Glob("testdata/*.log")
	must.NoError(t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		must.NoError(t, err)
		lines := strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' || r == '\r' })
		for i := range lines {
			lines[i] = strings.ReplaceAll(string(Clean(nil, []byte(lines[i]))), "\n", " ")
		}
		want := parse(newParser(t, Config{}), lines...)
		for cut := range lines {
			p := newParser(t, Config{})
			got := parse(p, lines[:cut]...)
			js, err := json.Marshal(p.State())
			must.NoError(t, err)
			must.Less(t, 1024, len(js))
			var st State
			must.NoError(t, json.Unmarshal(js, &st))
			q := newParser(t, Config{})
			q.SetState(st)
			must.Eq(t, p.Metric(), q.Metric())
			got = append(got, parse(q, lines[cut:]...)...)
			if strings.Contains(file, "nanogpt") {
				continue // counts of other metrics are not kept
			}
			must.Eq(t, want, got, must.Sprintf("%s, cut at %d, %s", file, cut, js))
		}
	}

	for _, st := range []State{
		{Metric: "loss", Key: "x"},
		{Metric: "loss", Key: "loss", Shape: 99},
		{Metric: "loss", Key: "loss", Rank: -3},
		{Metric: strings.Repeat("x", 999), Key: "x"},
		{Metric: "loss", Key: "loss", Steps: steps{Of: math.NaN()}},
		{Metric: "loss", Key: "loss", Steps: steps{Of: -1}},
		{Metric: "loss", Key: "loss", Labels: labels{Follow1: -1}},
		{Metric: "loss", Key: "loss", Labels: labels{Falls: 99}},
		{Header: "  ", Box: strings.Repeat("x", 9999)},
	} {
		p := newParser(t, Config{})
		p.SetState(st)
		must.Eq(t, "", p.Metric())
	}
	p := newParser(t, Config{Metric: "acc"})
	p.SetState(State{Metric: "loss", Key: "loss"})
	must.Eq(t, []string{"1/- acc=0.5"}, parse(p, "step=1 acc=0.5"))
}

func TestParse_learningRate(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  float64
	}{
		{[]string{"loss=0.5"}, 0},
		{[]string{"lr=0.25 loss=0.5"}, 0.25},
		{[]string{"loss=0.5 Learning Rate 1e-3"}, 1e-3},
		{[]string{"step 3 lr=[0.25, 0.5]", "loss=0.5"}, 0.25},
		{[]string{"{'loss': 0.5, 'learning_rate': '5e-05'}"}, 5e-5},
		{[]string{"epoch  lr  loss", "1  0.25  0.5"}, 0.25},
		{[]string{"| loss | 0.5 |", "| train/lr | 0.25 |", "--------------"}, 0.25},
	} {
		p := newParser(t, Config{})
		var got []float64
		for _, line := range c.lines {
			if r, ok := p.Parse([]byte(line)); ok {
				must.Eq(t, 0.5, r.Value)
				got = append(got, r.LR)
			}
		}
		must.Eq(t, []float64{c.want}, got, must.Sprint(c.lines))
	}
}

func TestParser_Goal(t *testing.T) {
	p := newParser(t, Config{})
	must.Eq(t, "", p.Metric())
	must.Eq(t, "min", p.Goal())
	must.Eq(t, "", p.Note())
	parse(p, "accuracy=0.5")
	must.Eq(t, "accuracy", p.Metric())
	must.Eq(t, "max", p.Goal())
	must.Eq(t, "min", newParser(t, Config{Metric: "accuracy", Goal: "min"}).Goal())
	must.Eq(t, "max", newParser(t, Config{Metric: "accuracy"}).Goal())
	p = newParser(t, Config{Metric: "foo"})
	must.Eq(t, "min", p.Goal())
	must.StrContains(t, p.Note(), `"foo"`)
	must.Eq(t, "", newParser(t, Config{Metric: "foo", Goal: "max"}).Note())
}

func TestParser_Others(t *testing.T) {
	p := newParser(t, Config{})
	p.Explain()
	parse(p, "loss=0.5 acc=0.1 zeta=0.5 train speed=3.5", "acc=0.2 zeta=0.25", `{"zeta": 3}`)
	metrics, names := p.Others()
	must.Eq(t, []NameCount{{"acc", 2}}, metrics)
	must.Eq(t, []NameCount{{"zeta", 3}, {"train speed", 1}}, names)
	must.Eq(t, ParserStats{Lines: 3, Reports: 1, Other: 1, Noise: 1}, p.Stats())
}

// More metrics than are kept neither displace the current one nor use more memory.
func TestParser_manySeries(t *testing.T) {
	p := newParser(t, Config{})
	parse(p, "step=0 loss=1.0")
	for i := range 10_000 {
		parse(p, fmt.Sprintf("head%dx_loss=0.5", i))
	}
	must.LessEq(t, maxSeries, len(p.series))
	must.Eq(t, []string{"1/- loss=0.5"}, parse(p, "step=1 loss=0.5"))

	// More than maxCandidates in one line: the best is found anywhere.
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, "h%dx_loss: 0.1, ", i)
	}
	must.Eq(t, []string{"2/- loss=0.25"}, parse(newParser(t, Config{}), b.String()+"loss: 0.25 step: 2"))
}

func TestParse_noAllocations(t *testing.T) {
	for _, config := range []Config{{}, {Metric: "loss"}, {Metric: "policy loss"}} {
		p := newParser(t, config)
		var lines [][]byte
		for line := range strings.SplitSeq(string(noise(64<<10)), "\n") {
			lines = append(lines, []byte(line))
		}
		must.Eq(t, 0, testing.AllocsPerRun(5, func() {
			for _, line := range lines {
				if _, ok := p.Parse(line); ok {
					t.Fatalf("noise was read as a report: %s", line)
				}
			}
		}))
		report := []byte(`step=10/90 loss=0.5 policy loss: 0.25 acc=0.5`)
		dict := []byte(`{"step": 3, "train": {"loss": 0.5}, "lr": 1e-5, "msg": "x"}`)
		bar := []byte("Epoch 3:  10%|█ | 10/100 [00:01<00:09, 9.51it/s, v_num=0, train_loss=0.5]")
		for _, line := range [][]byte{report, dict, bar} {
			must.Eq(t, 0, testing.AllocsPerRun(5, func() { p.Parse(line) }), must.Sprintf("%s", line))
		}
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.log")
	must.NoError(f, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		must.NoError(f, err)
		for i, line := range strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' || r == '\r' }) {
			if i < 8 {
				f.Add([]byte(line), "")
			}
		}
	}
	for _, s := range []string{"", "loss", "loss=", "loss:[", "loss (", `{"`, `{"a":{"b":`, "1%|", "10it [", "[1,", "[1/", "epoch 1: 2/", "loss tensor(", "{'loss': '", `{"a\`, "Train: 0 [", "epoch  loss", "| a | 1 |", "--------", "epoch,loss\n1,0.5", "5epoch:", "1/2 (epoch", "best loss 1."} {
		f.Add([]byte(s), "loss")
		f.Add([]byte(s), "policy 损失")
	}
	f.Fuzz(func(t *testing.T, line []byte, metric string) {
		p, err := NewParser(Config{Metric: metric})
		if err != nil {
			t.Skip()
		}
		p.Explain()
		in := string(line)
		for range 3 {
			r, ok := p.Parse(line)
			if string(line) != in {
				t.Fatal("the line was changed")
			}
			if !ok {
				continue
			}
			if r.StepOnly() {
				if isSet(r.Value) || !isSet(r.Step) || r.Step > r.Total || len(r.Bar) > maxBarName {
					t.Fatalf("step report %+v", r)
				}
			} else if r.Metric != p.Metric() {
				t.Fatalf("metric %q, parser %q", r.Metric, p.Metric())
			}
			if r.Step < 0 || math.IsInf(r.Step, 0) || r.Total < 0 || math.IsInf(r.Total, 0) {
				t.Fatalf("step %v of %v", r.Step, r.Total)
			}
			if _, err := json.Marshal(p.State()); err != nil {
				t.Fatal(err)
			}
		}
		st := p.Stats()
		if st.Lines != st.Reports+st.Noise+st.Other+st.NotNumber+st.Shape+st.Eval {
			t.Fatalf("lines are missing: %+v", st)
		}
	})
}

func TestParse_perEpoch(t *testing.T) {
	for _, c := range []struct {
		name  string
		lines []string
		want  float64
	}{
		{"position in an epoch", []string{"Train Epoch: 3 [640/60000 (1%)]	Loss: 2.2"}, 60000},
		{"epochs alone", []string{"Epoch 1 loss: 0.5", "Epoch 2 loss: 0.4"}, 1},
		{"a part of an epoch", []string{"{'loss': 0.5, 'step': 500, 'epoch': 0.32}"}, 1562.5},
		{"a step that runs on", []string{"epoch 1 step 5 loss 9.5", "epoch 1 step 10 loss 9.5", "epoch 2 step 105 loss 8.5", "epoch 2 step 110 loss 8.5", "epoch 4 step 305 loss 7.5"}, 100},
		{"a step that starts again", []string{"[1,  2000] loss: 2.1", "[1,  4000] loss: 1.8", "[2,  2000] loss: 1.4"}, 4000},
		{"a bar that starts again", []string{"50%|#  | 50/100 [00:02<00:02, 9.5it/s, loss=1.4]", "100%|#  | 100/100 [00:02<00:02, 9.5it/s, loss=1.4]", " 50%|#  | 50/100 [00:02<00:02, 9.5it/s, loss=1.4]"}, 100},
		{"no epoch", []string{"step 10/100 loss 0.5", "step 20/100 loss 0.5"}, 0},
		{"one epoch so far", []string{"epoch 1 step 5 loss 9.5", "epoch 1 step 10 loss 9.5", "epoch 2 step 105 loss 8.5"}, 0},
		{"back in an epoch", []string{"epoch 2 step 105 loss 8.5", "epoch 3 step 205 loss 8.5", "epoch 1 step 5 loss 9.5", "epoch 2 step 105 loss 8.5"}, 0},
	} {
		p := newParser(t, Config{})
		got := math.NaN()
		for _, line := range c.lines {
			r, ok := p.Parse([]byte(line))
			must.True(t, ok, must.Sprint(c.name, line))
			got = r.PerEpoch
		}
		must.Eq(t, c.want, got, must.Sprint(c.name))
		q := newParser(t, Config{})
		q.SetState(p.State())
		must.Eq(t, p.steps, q.steps)
	}
}
