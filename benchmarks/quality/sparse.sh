#!/usr/bin/env bash
# Every run of the sparsity tables, as lanes that run side by side on one GPU; each run writes its own JSON.
#
#   bash benchmarks/quality/sparse.sh choose OUT    settings on held-out training images, and all rows that need none
#   bash benchmarks/quality/sparse.sh final OUT     the rows whose settings were chosen, three seeds
#
# CAFFE, STRUCTURED and VGG hold the settings chosen, as options of the scripts.
set -u
stage=$1 out=$2
caffe=${CAFFE:---temperature 1.5} structured=${STRUCTURED:---temperature 1} vgg=${VGG:---temperature 0.1}
mkdir -p "$out/choice" "$out/sparse" "$out/vgg" "$out/pruning" "$out/text"
export OMP_NUM_THREADS=1

mnist() { python -W ignore -m benchmarks.quality.sparse_mnist "$@"; }
cifar() { python -W ignore -m benchmarks.quality.sparse_cifar10 "$@"; }

vgg_choice() { # one dense network, and SparseVD from it in four ways
  local dense=$out/choice/dense.safetensors
  cifar --validate --dense-only --dense "$dense" --out "$out/choice"
  cifar --validate --dense "$dense" --temperature 1 --out "$out/choice" &
  cifar --validate --dense "$dense" --temperature 0.3 --out "$out/choice" &
  cifar --validate --dense "$dense" --temperature 0.1 --out "$out/choice" &
  cifar --validate --dense "$dense" --temperature 1 --lr 1e-4 --out "$out/choice" &
  wait
  rm -f "$dense"
}

choose() {
  for t in 1 1.5 2.2; do mnist --row lenet-5-caffe --validate --temperature $t --out "$out/choice" & done
  for t in 1 3; do mnist --row structured --validate --temperature $t --out "$out/choice" & done
  vgg_choice &
  cifar --random-labels --epochs 30 --lr 1e-3 --out "$out/vgg" &
  for model in lenet_300_100 lenet5_caffe; do
    (for seed in 0 1 2; do
      python -W ignore -m benchmarks.quality.pruning --model $model --seed $seed --out "$out/pruning"
    done) &
  done
  for row in random-labels random-labels-dropout; do
    (for seed in 0 1 2; do mnist --row $row --seed $seed --out "$out/sparse"; done) &
  done
  for method in sparse-vd ard magnitude random; do
    (for seed in 0 1 2; do
      python -W ignore -m benchmarks.quality.sparse_text --method $method --seed $seed --out "$out/text"
      [ $method = random ] && python -W ignore -m benchmarks.quality.sparse_text --method dense --seed $seed --out "$out/text"
    done) &
  done
  wait
}

final() {
  for seed in 0 1 2; do
    mnist --row lenet-5-caffe $caffe --seed $seed --out "$out/sparse" &
    mnist --row structured $structured --seed $seed --out "$out/sparse" &
    cifar $vgg --seed $seed --out "$out/vgg" &
  done
  for width in 0.5 0.25; do cifar $vgg --width $width --out "$out/vgg" & done
  wait
}

$stage
