"""What docs/walkthrough.md says of a critic, measured on a run: python docs/measure.py runs/RUN"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # to start from any folder

import torch

import uwac
from benchmark.measure.diagnose import data_of

agent, saved = uwac.load_checkpoint(sys.argv[1])
args = agent.args
obs, _, reward, *_ = data_of(Path(sys.argv[1]), saved)
print("updates, y, Var[Q] / y²:")
for row in saved["history"]:
    y = (row["target_q"][0] - reward.mean().item()) / args.gamma
    print(f"  {row['step']:,}  {y:.1f}  {row['variance'][0] / y**2:.4f}")

obs = obs[None, :500]  # (1, B, D)
with torch.no_grad():
    x, y = agent.actor.sample(obs, 10), agent.vae.sample(obs, 10)  # (1, B, M, A) each
    distance = uwac.mmd(x, y, args.mmd_kernel, args.mmd_sigma).mean()
    of_means = (x.mean(2) - y.mean(2)).norm(dim=-1).mean() / args.mmd_sigma**0.5
    print(f"MMD {distance:.4f}, by the distance of the means {of_means:.4f}")

    action = x[:, :, 0].tanh()
    q = agent.critic(obs, action)  # (2, 1, B)
    passes = torch.stack([agent.critic(obs, action, args.dropout) for _ in range(2000)])
    off = (passes.mean(0) / q - 1).abs().mean()
    single = (passes.std(0) / q).mean()
    print(f"from Q without dropout differ: 2,000 passes' mean {off:.2%}, one pass {single:.1%}")

    ten = agent.critic(obs, x.tanh())  # (2, 1, B, M)
    gain = (ten.amax(-1) - ten.mean(-1)).mean()
    print(f"Q {ten.mean():.1f}, the best of ten candidates has {gain:.3f} more")

    first, second, last = agent.critic.layers
    h2 = second(first(uwac.concat(obs, action)).relu()).relu()  # (2, 1, B, H)
    terms = h2 * last.weight.mT
    alike = (terms.sum(-1).square() / terms.square().sum(-1)).mean()
    print(f"(Σ u h)² / Σ (u h)² {alike:.1f}, at most {terms.shape[-1]}")

    for layer in agent.critic.layers:
        layer.bias.zero_()
    print(f"Q without biases {agent.critic(obs, x.tanh()).mean():.1f}")
