"""Options of OpenRLHF's `train_sft`, `train_rm` and `train_dpo`: what training by rewards calls them, if at all."""

from collections.abc import Mapping

from .foreign import Foreign

_NAMES = {
    "model.model_name_or_path": "actor.model_name_or_path",
    "model.gradient_checkpointing_enable": "actor.gradient_checkpointing_enable",
    "model.aux_loss_coef": "actor.aux_loss_coef",
    "optim": "actor.optim",
    "muon.lr": "actor.muon.lr",
    "muon.momentum": "actor.muon.momentum",
    "muon.ns_steps": "actor.muon.ns_steps",
    "muon.nesterov": "actor.muon.nesterov",
    "muon.no_nesterov": "actor.muon.no_nesterov",
    "adam.lr": "actor.adam.lr",
    "adam.betas": "actor.adam.betas",
    "adam.eps": "actor.adam.eps",
    "adam.weight_decay": "actor.adam.weight_decay",
    "min_lr_ratio": "actor.min_lr_ratio",
    "data.dataset": "data.prompt_dataset",
    "data.dataset_probs": "data.prompt_probs",
    "data.dataset_split": "data.prompt_split",
}
_TEXTS = "is for texts to learn from, and here the model writes them: leave it out; --data.input_key names the prompts"
_PAIRS = (
    "is for pairs of a chosen and a rejected text, and here rewards say what is better: leave it out, and name a "
    "reward model in --reward.model_name_or_path, or a function in --reward.remote_url"
)
_REWARD_MODEL = "is for training a reward model; leave it out, and name a trained one in --reward.model_name_or_path"

OF_OTHER_COMMANDS: Mapping[str, Foreign] = {
    **{name: Foreign(f"is of supervised training; here it is --{ours}") for name, ours in _NAMES.items()},
    "model.gradient_checkpointing_reentrant": Foreign(
        "adapters and packed rows need the other kind; give --actor.gradient_checkpointing_enable alone"
    ),
    "model.pretrain_mode_enable": Foreign(_TEXTS),
    "data.output_key": Foreign(_TEXTS),
    "data.multiturn": Foreign(
        "is for sft; here episodes of several turns are those of an environment (--agent); leave it out"
    ),
    "data.tokenizer_chat_template": Foreign(
        "templates come with the model: save it in the folder of --actor.model_name_or_path, and give "
        "--data.apply_chat_template"
    ),
    "data.prompt_key": Foreign(f"{_PAIRS}; --data.input_key names the prompts"),
    "data.chosen_key": Foreign(_PAIRS),
    "data.rejected_key": Foreign(_PAIRS),
    "model.beta": Foreign(f"{_PAIRS}; --algo.kl.init_coef holds the model near its reference"),
    "model.ipo_enable": Foreign(_PAIRS),
    "model.label_smoothing": Foreign(_PAIRS),
    "model.nll_loss_coef": Foreign(_PAIRS),
    "model.compute_fp32_loss_enable": Foreign(_REWARD_MODEL),
    "model.margin_loss_enable": Foreign(_REWARD_MODEL),
    "model.loss_type": Foreign(_REWARD_MODEL),
    "ref.model_name_or_path": Foreign(
        "is for another reference than the model as it began, which is the reference here; leave it out"
    ),
}

OLDER_OTHER_NAMES: Mapping[str, str] = {
    "pretrain_mode": "model.pretrain_mode_enable",
    "dataset": "data.dataset",
    "dataset_probs": "data.dataset_probs",
    "dataset_split": "data.dataset_split",
    "multiturn": "data.multiturn",
    "output_key": "data.output_key",
    "tokenizer_chat_template": "data.tokenizer_chat_template",
    "compute_fp32_loss": "model.compute_fp32_loss_enable",
    "margin_loss": "model.margin_loss_enable",
    "loss": "model.loss_type",
    "prompt_key": "data.prompt_key",
    "chosen_key": "data.chosen_key",
    "rejected_key": "data.rejected_key",
    "beta": "model.beta",
    "ipo": "model.ipo_enable",
    "label_smoothing": "model.label_smoothing",
    "nll_loss_coef": "model.nll_loss_coef",
    "ref_pretrain": "ref.model_name_or_path",
}
