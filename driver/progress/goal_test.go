// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestInferGoal(t *testing.T) {
	for goal, names := range map[string]string{
		"min": `loss Loss LOSS train_loss train/loss loss/train val_loss eval_loss valLoss policy_loss perplexity ppl
			eval_perplexity wer cer word_error_rate mse rmse MAE val_mean_absolute_error train-rmse binary_logloss log_loss
			cross_entropy categorical_crossentropy nll neg_log_likelihood error_rate err top1_err fid kl_divergence nelbo
			reward_loss train.loss validation/loss@best`,
		"max": `acc accuracy Accuracy val_accuracy Acc@1 acc1 top_5_accuracy sparse_top_k_categorical_accuracy auc val_auc
			AUROC f1 f1_score F1-macro bleu sacrebleu rougeL reward ep_rew_mean mean_reward map mAP mAP50 miou mean_iou IoU
			dice psnr SSIM precision recall score r2 elbo neg_mean_squared_error win_rate success_rate exact_match pass@1
			episode_return log_likelihood`,
	} {
		for _, name := range strings.Fields(names) {
			got, ok := InferGoal(name)
			must.True(t, ok, must.Sprint(name))
			must.Eq(t, goal, got, must.Sprint(name))
		}
	}
	for _, name := range []string{"", "lr", "learning_rate", "time", "step", "foo", "value", "policy_entropy", "grad_norm",
		"glossary", "损失", strings.Repeat("x", 500)} {
		got, ok := InferGoal(name)
		must.False(t, ok, must.Sprint(name))
		must.Eq(t, GoalMin, got)
	}
}

func TestClassify(t *testing.T) {
	for want, names := range map[rank]string{
		rankLoss:      `loss Loss train_loss train/loss training_loss loss/train total_loss lm_loss loss_avg train_loss_step trainLoss`,
		rankPartLoss:  `box_loss rpn_loss train_loss_epoch epoch_loss nll_loss`,
		rankValLoss:   `val_loss eval_loss valid/loss loss/test val_loss_epoch`,
		rankFalling:   `perplexity wer val_wer train-rmse cross_entropy`,
		rankRising:    `accuracy acc reward ep_rew_mean f1_score Acc@1 top_5_accuracy win_rate`,
		rankValRising: `val_accuracy eval_f1 test/acc val_map`,
		rankPoor:      `best_loss best_val_acc policy_loss value_loss entropy_loss`,
		rankNone: `lr learning_rate loss_scale loss_weight loss_fn lossless time step epoch dropout_rate grad_norm glossary
			score return hit_rate cache_hits policy_entropy log_likelihood threshold accuracy_threshold batch_size`,
	} {
		for _, name := range strings.Fields(names) {
			must.Eq(t, want, classify([]byte(name), false, true), must.Sprint(name))
		}
	}
	// Ambiguous words need a decimal, or a word before them.
	must.Eq(t, rankNone, classify([]byte("error"), false, false))
	must.Eq(t, rankFalling, classify([]byte("error"), false, true))
	must.Eq(t, rankNone, classify([]byte("precision"), false, false))
	must.Eq(t, rankNone, classify([]byte(strings.Repeat("a_", 40)+"loss"), false, true))
	// The line concerns held-out data.
	must.Eq(t, rankValLoss, classify([]byte("loss"), true, true))
	must.Eq(t, rankLoss, classify([]byte("train loss"), true, true))
}
