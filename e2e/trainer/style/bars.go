// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package style

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// keras prints like Keras 3's Model.fit: a redrawn bar with backspaces, carriage returns and
// colours (verbose=1), also without a terminal; by epoch one line each (verbose=2). Step and
// total restart with each epoch.
type keras struct {
	sink
	drawn      int // visible characters of the last bar
	begun      int
	epochFirst int
	epochStart time.Duration
}

const kerasWidth = 20

func (k *keras) EveryEpoch() bool { return true }

func (k *keras) Begin() {
	k.epochFirst = k.run.First
	k.begun = k.run.First / k.run.PerEpoch
	k.announce()
}

func (k *keras) announce() {
	k.begun++
	epochs := k.run.epochs()
	if epochs == 0 {
		epochs = 1_000_000 // typical of users who stop by hand
	}
	k.print(fmt.Sprintf("Epoch %d/%d\n", k.begun, epochs))
	k.drawn = 0
}

func (k *keras) Report(r Report) {
	_, at := k.run.epoch(r.Step)
	length, end := k.run.PerEpoch, k.run.EpochEnd(r.Step)
	values := ""
	if k.run.Metric.accuracy() {
		values += kerasValue("accuracy", r.Accuracy)
	}
	if k.run.Metric.loss() {
		values += kerasValue("loss", r.Loss)
	}
	if end {
		if k.run.Metric.accuracy() {
			values += kerasValue("val_accuracy", r.Accuracy)
		}
		if k.run.Metric.loss() {
			values += kerasValue("val_loss", r.Loss)
		}
	}
	spent := r.Elapsed - k.epochStart
	perStep := spent / time.Duration(max(1, r.Step-k.epochFirst))

	if k.run.Epochs {
		k.print(fmt.Sprintf("%d/%d - %.0fs - %s%s\n", at, length, spent.Seconds(), kerasStep(perStep), values))
	} else {
		count := fmt.Sprintf("%*d/%d", len(fmt.Sprint(length)), at, length)
		full := kerasWidth * at / length
		clock := kerasClock(time.Duration(length-at) * perStep)
		if end {
			clock = kerasClock(spent)
		}
		tail := " " + kerasStep(perStep) + values
		visible := utf8.RuneCountInString(count) + 1 + kerasWidth + 1 + len(clock) + len(tail)
		line := strings.Repeat("\b", k.drawn) + "\r" +
			"\x1b[1m" + count + "\x1b[0m " +
			"\x1b[32m" + strings.Repeat("━", full) + "\x1b[0m" +
			"\x1b[37m" + strings.Repeat("━", kerasWidth-full) + "\x1b[0m " +
			"\x1b[1m" + clock + "\x1b[0m" + tail +
			strings.Repeat(" ", max(0, k.drawn-visible))
		if end {
			line += "\n"
		}
		k.print(line)
		k.drawn = visible
	}
	if end {
		k.epochFirst, k.epochStart = r.Step, r.Elapsed
		if k.run.Steps == 0 || r.Step < k.run.Steps {
			k.announce()
		}
	}
}

func (k *keras) End(Report) {}

func kerasValue(name string, v float64) string {
	if a := math.Abs(v); a <= 1e-3 {
		return " - " + name + ": " + printf("%.4e", v)
	}
	return " - " + name + ": " + printf("%.4f", v)
}

func kerasStep(d time.Duration) string {
	switch s := d.Seconds(); {
	case s >= 1 || s == 0:
		return fmt.Sprintf("%.0fs/step", s)
	case s >= 1e-3:
		return fmt.Sprintf("%.0fms/step", s*1e3)
	default:
		return fmt.Sprintf("%.0fus/step", s*1e6)
	}
}

func kerasClock(d time.Duration) string {
	switch s := int(d.Seconds()); {
	case s >= 3600:
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s%3600/60, s%60)
	case s >= 60:
		return fmt.Sprintf("%d:%02d", s/60, s%60)
	default:
		return fmt.Sprintf("%ds", s)
	}
}

// lightning prints like PyTorch Lightning's Trainer with its tqdm bar on stdout. Step and total
// restart with each epoch.
type lightning struct {
	sink
	epochFirst int
	epochStart time.Duration
}

func (l *lightning) EveryEpoch() bool { return true }

func (l *lightning) Begin() {
	_, _ = fmt.Fprintf(l.err, "GPU available: False, used: False\nTPU available: False, using: 0 TPU cores\n\n"+
		"  | Name  | Type | Params | Mode\n---------------------------------------\n0 | %-5s | %s | %s | train\n",
		"model", strings.ToUpper(l.run.Model), lightningCount(l.run.Params))
	l.epochFirst = l.run.First
}

func lightningCount(n int) string {
	switch {
	case n >= 1_000_000:
		return fmt.Sprintf("%.1f M", float64(n)/1e6)
	case n >= 1000:
		return fmt.Sprintf("%.1f K", float64(n)/1e3)
	default:
		return fmt.Sprint(n)
	}
}

func (l *lightning) Report(r Report) {
	epoch, at := l.run.epoch(r.Step)
	length, end := l.run.PerEpoch, l.run.EpochEnd(r.Step)
	values := []string{"v_num=0"}
	add := func(name string, v float64) { values = append(values, name+"="+lightningNumber(v)) }
	if l.run.Metric.loss() {
		add("train_loss", r.Loss)
	}
	if l.run.Metric.accuracy() {
		add("train_acc", r.Accuracy)
	}
	if end {
		if l.run.Metric.loss() {
			add("val_loss", r.Loss)
		}
		if l.run.Metric.accuracy() {
			add("val_acc", r.Accuracy)
		}
	}
	first := l.epochFirst - epoch*l.run.PerEpoch
	name := fmt.Sprintf("Epoch %d", epoch)
	l.print("\r" + bar(name, at, length, first, r.Elapsed-l.epochStart, strings.Join(values, ", ")))
	if end {
		l.epochFirst, l.epochStart = r.Step, r.Elapsed
		if l.run.Steps > 0 && r.Step >= l.run.Steps {
			l.print("\n")
		}
	}
}

func (l *lightning) End(Report) {
	_, _ = fmt.Fprintf(l.err, "`Trainer.fit` stopped: `max_steps=%d` reached.\n", l.run.Steps)
}

// lightningNumber is padded to five characters, so NaN becomes nan.0, as in Lightning.
func lightningNumber(v float64) string {
	text := tqdmNumber(v)
	if strings.Contains(text, "e") || len(text) >= 5 {
		return text
	}
	if !strings.Contains(text, ".") {
		text += "."
	}
	return text + strings.Repeat("0", max(0, 5-len(text)))
}
