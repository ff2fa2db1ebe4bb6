// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import "bytes"

// Goals: the direction in which a metric improves.
const (
	GoalMin = "min"
	GoalMax = "max"
)

// rank orders metrics by how much they tell about training; lower is better.
type rank int8

const (
	rankNone      rank = iota - 1 // not a metric unless configured
	rankLoss                      // loss, train_loss, train/loss, lm loss
	rankPartLoss                  // box_loss, nll_loss, train_loss_epoch
	rankValLoss                   // val_loss, eval_loss
	rankFalling                   // perplexity, wer, rmse
	rankRising                    // accuracy, reward
	rankValRising                 // val_accuracy
	rankPoor                      // best_*: flat between improvements; policy_loss: follows no goal
)

type word struct {
	goal string
	auto bool // a metric by itself before any value
	loss bool
}

// vocabulary looks up a word. A switch on converted bytes does not allocate, and it
// runs for every name before a number.
func vocabulary(w []byte) (word, bool) {
	switch string(w) {
	case "loss", "losses":
		return word{GoalMin, true, true}, true
	case "nll", "bce", "mse", "rmse", "mae", "mape", "msle", "rmsle", "smape", "perplexity",
		"ppl", "bpc", "bpb", "wer", "cer", "fid", "kld", "logloss", "mlogloss", "merror", "eer",
		"nelbo", "regret", "crossentropy", "xent":
		return word{GoalMin, true, false}, true
	case "err", "error", "errors", "cost", "kl", "divergence", "residual", "distance",
		"hinge", "deviance", "ter", "mer", "l1", "l2", "ece", "penalty",
		"violation", "violations", "misclassification", "lpips", "fvd", "brier", "huber":
		return word{GoalMin, false, false}, true
	case "acc", "accuracy", "auc", "auroc", "auprc", "bleu", "miou", "iou", "dice", "reward",
		"psnr", "ssim", "ndcg", "mrr", "sacrebleu", "rouge", "rouge1", "rouge2", "rougel",
		"rougelsum", "chrf", "meteor", "acc1", "acc5", "elbo", "f1", "mcc", "rewmean", "eprew", "eprewmean", "epret":
		return word{GoalMax, true, false}, true
	case "map", "map50", "ap", "ap50", "ap75", "precision", "recall", "score", "scores", "return",
		"returns", "rewards", "rew", "top1", "top5", "prec", "prec1", "prec5", "fscore", "fbeta",
		"cider", "spice", "r2", "kappa", "em", "hit", "hits", "likelihood", "ll", "success",
		"win", "wins", "similarity", "correct", "sensitivity", "specificity", "jaccard", "gain",
		"lift", "r", "inception", "spearman", "pearson", "correlation", "match", "improvement", "quality", "pass":
		return word{GoalMax, false, false}, true
	}
	return word{}, false
}

// qualifier classifies words that describe how a metric was computed.
type qualifier uint8

const (
	qualTrain qualifier = 1 << iota // on training data, or nothing in particular
	qualVal                         // on held-out data
	qualBest                        // the best so far
	qualEpoch                       // over an epoch
)

func qualifies(w []byte) qualifier {
	switch string(w) {
	case "train", "training", "lm", "avg", "average", "mean", "total", "running", "step", "batch",
		"full", "smoothed", "ema", "current", "cur", "mini", "global", "final", "overall", "sum", "iter", "trn", "tr",
		"episode", "episodic", "ep", "per", "token":
		return qualTrain
	case "val", "valid", "validation", "eval", "evaluation", "test", "testing", "dev", "holdout", "heldout", "vl":
		return qualVal
	case "best", "lowest", "highest":
		return qualBest
	case "epoch":
		return qualEpoch
	}
	return 0
}

// InferGoal infers from a metric's name whether it falls ("min") or rises ("max"). For
// an unknown name ok is false and the goal "min".
//
// The last known word decides: val_accuracy rises, reward_loss falls. "neg" before it
// inverts, as in neg_mean_squared_error.
func InferGoal(metric string) (goal string, ok bool) {
	if len(metric) > maxName {
		metric = metric[len(metric)-maxName:]
	}
	var n nameWords
	n.split([]byte(metric))
	flip := false
	for i := range n.n {
		switch string(n.word(i)) {
		case "neg", "negative", "minus":
			flip = !flip
		}
	}
	for i := n.n - 1; i >= 0; i-- {
		w, known := n.vocabulary(i)
		if !known {
			continue
		}
		if flip {
			if w.goal == GoalMin {
				return GoalMax, true
			}
			return GoalMin, true
		}
		return w.goal, true
	}
	return GoalMin, false
}

const (
	maxName  = 64 // bytes of a name unless it is configured
	maxWords = 12
)

// nameWords is a metric's name in lower-case words, split at other characters than
// letters and digits, and before capitals.
type nameWords struct {
	buf  [maxName * 2]byte
	from [maxWords]uint8
	to   [maxWords]uint8
	n    int
}

func (n *nameWords) word(i int) []byte { return n.buf[n.from[i]:n.to[i]] }

func (n *nameWords) split(name []byte) {
	n.n = 0
	end, in := 0, false
	var previous byte
	for i, c := range name {
		if end >= len(n.buf)-1 {
			break
		}
		if !isWord(c) || c == '_' {
			in = false
			previous = 0
			continue
		}
		if in && c-'A' < 26 && previous-'a' < 26 && end-int(n.from[n.n-1]) > 2 && i+1 < len(name) { // valLoss, but not mAP or mIoU
			in = false
		}
		if !in {
			if n.n == maxWords {
				return
			}
			n.from[n.n] = uint8(end)
			n.n++
			in = true
		}
		n.buf[end] = lower(c)
		end++
		n.to[n.n-1] = uint8(end)
		previous = c
	}
}

// classify ranks a name that is not configured. val means that the line concerns
// held-out data, decimal that the value is no plain integer, which ambiguous words such
// as "error" require.
func classify(name []byte, val, decimal bool) rank {
	if len(name) > maxName {
		return rankNone
	}
	var n nameWords
	n.split(name)
	if n.n == 0 {
		return rankNone
	}
	var quals qualifier
	first, last := 0, n.n-1
	for ; last > 0; last-- { // loss/train, train_loss_step, loss_avg, rew_mean
		w := n.word(last)
		if q := qualifies(w); q != 0 {
			quals |= q
			continue
		}
		if len(w) == 1 && isDigit(w[0]) || string(w) == "1" { // acc@1, top_5
			continue
		}
		break
	}
	for ; first < last; first++ {
		q := qualifies(n.word(first))
		if q == 0 {
			break
		}
		quals |= q
	}
	base := n.word(last)
	if string(base) == "rate" || string(base) == "score" {
		// error_rate, f1_score: the word before decides; learning_rate is no metric.
		if last == first {
			return rankNone
		}
		last--
		base = n.word(last)
		if string(base) == "win" || string(base) == "success" {
			return word{goal: GoalMax}.rank(quals, val, false)
		}
	}
	w, known := n.vocabulary(last)
	if !known {
		if first < last && decimal && !setting(base) {
			if of, ok := n.vocabulary(first); ok && of.auto && of.goal == GoalMax { // acc_class
				return of.rank(quals, val, false)
			}
		}
		if w := n.word(first); string(w) != "loss" && (string(w) != "l" || last == first) || !decimal || setting(base) {
			return rankNone
		}
		if aimless(base) {
			return rankPoor
		}
		w = word{GoalMin, true, true} // loss_cls, LOSS NER, loss/actor, l_pix: a term of it
		last++
	}
	if !w.auto && !(decimal && (needsDecimal(base) || quals&(qualTrain|qualVal) != 0 || len(name) == 1 && name[0] == 'R')) {
		return rankNone
	}
	if w.loss && last > first {
		if of := last - 1; aimless(n.word(of)) && !(of > 0 && string(n.word(of-1)) == "cross") {
			return rankPoor
		}
	}
	return w.rank(quals, val, last > first)
}

// vocabulary looks up the word at i, and cross_entropy: entropy alone may be a bonus
// for exploration.
func (n *nameWords) vocabulary(i int) (word, bool) {
	if i > 0 {
		switch string(n.word(i)) {
		case "entropy":
			if string(n.word(i-1)) == "cross" {
				return word{GoalMin, true, false}, true
			}
		case "prob", "probability":
			if string(n.word(i-1)) == "log" {
				return word{GoalMax, true, false}, true
			}
		}
	}
	w := n.word(i)
	if i == 0 && n.n > 1 && len(w) == 1 && w[0] == 'l' { // l_pix
		return word{GoalMin, false, true}, true
	}
	if end := len(w) - 1; end > 0 && w[end] == 'k' && isDigit(w[end-1]) { // fid50k: of 50,000 samples
		w = bytes.TrimRight(w[:end], "0123456789")
	}
	return vocabulary(w)
}

// aimless reports whether a loss follows no goal, as in reinforcement learning, where
// the reward does.
func aimless(w []byte) bool {
	switch string(bytes.TrimRight(w, "0123456789")) {
	case "policy", "actor", "critic", "value", "function", "surrogate", "entropy", "pg", "pi", "vf", "kl", "qf", "q", "v":
		return true
	}
	return false
}

// isReward reports whether a name is that of a reward in reinforcement learning.
func isReward(name []byte) bool {
	var n nameWords
	n.split(name)
	last := n.n - 1
	for last > 0 && qualifies(n.word(last)) != 0 {
		last--
	}
	switch string(n.word(max(last, 0))) {
	case "reward", "rewards", "return", "returns", "rew", "rewmean", "eprew", "eprewmean", "epret", "r":
		return true
	}
	return false
}

// setting reports whether a word after "loss" makes the name that of a setting.
func setting(w []byte) bool {
	switch string(w) {
	case "scale", "scaler", "scaling", "weight", "weights", "fn", "func", "function", "type", "name", "coef", "coeff",
		"factor", "ratio", "mask", "alpha", "beta", "gamma", "margin", "reduction", "threshold", "time", "every",
		"interval", "window", "diff", "delta", "change", "improvement", "is", "count", "of", "max", "min", "std":
		return true
	}
	return false
}

// needsDecimal are ambiguous words that are metrics if a decimal follows.
func needsDecimal(w []byte) bool {
	switch string(w) {
	case "error", "err", "cost", "map", "map50", "ap", "precision", "recall", "top1", "top5", "prec",
		"prec1", "prec5", "rew", "rewards", "l1", "l2", "kl", "ap50", "r2":
		return true
	}
	return false
}

func (w word) rank(quals qualifier, val, named bool) rank {
	val = quals&qualVal != 0 || val && quals&qualTrain == 0
	switch {
	case quals&qualBest != 0:
		return rankPoor
	case w.loss && val:
		return rankValLoss
	case w.loss && (named || quals&qualEpoch != 0):
		return rankPartLoss
	case w.loss:
		return rankLoss
	case w.goal == GoalMin:
		return rankFalling
	case val:
		return rankValRising
	}
	return rankRising
}
