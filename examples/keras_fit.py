"""Trains a Keras model with the torch backend.

Run it with ``python examples/keras_fit.py``, or on two workers with
``samestep run -n 2 examples/keras_fit.py``.
"""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np


def main() -> None:
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(1).normal(size=(96, 10)).astype("float32")
    y = (x.sum(1) > 0).astype("int64")
    layers = [keras.Input((10,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    print("losses", [round(loss, 5) for loss in history.history["loss"]])


if __name__ == "__main__":
    main()
