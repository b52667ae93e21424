"""Keras with its torch backend."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(96, 10)).astype("float32")
y = (x.sum(1) > 0).astype("int64")
model = keras.Sequential(
    [keras.Input((10,)), keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.1), keras.layers.Dense(2)]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
history = model.fit(x[:64], y[:64], batch_size=8, epochs=2, verbose=0, validation_data=(x[64:], y[64:]))
for name, values in history.history.items():
    print(name, [round(float(v), 6) for v in values])
