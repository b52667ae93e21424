"""Lists the parts of models, for vectors, sequences and images, and the wrappers around them."""

from support.random_scripts.parts import Part, Wrapper

_NOISE = Part("noise", "", "h = h + 0.1 * torch.randn_like(h) if self.training else h")
_GRU = "self.rnn_N = nn.GRU(D, D, batch_first=BATCH_FIRST)"
_LSTM = "self.rnn_N = nn.LSTM(D, D, batch_first=BATCH_FIRST)"
_TRANSFORMER = "self.layer_N = nn.TransformerEncoderLayer(D, 2, 8, dropout=P, batch_first=BATCH_FIRST)"
_PACK = "packed_N = pack_padded_sequence(h, lengths, batch_first=BATCH_FIRST, enforce_sorted=False)"
_RESIDUAL = "h = kept_N + h"
_GATED = "h = kept_N + self.gate_N * h"

VECTOR_PARTS = (
    Part("linear", "self.linear_N = nn.Linear(D, D)", "h = torch.tanh(self.linear_N(h))", weight=3),
    Part("layer norm", "self.norm_N = nn.LayerNorm(D)", "h = self.norm_N(h)", weight=2),
    Part("group norm", "self.norm_N = nn.GroupNorm(2, D)", "h = self.norm_N(h)", weight=0.5),
    Part("batch norm", "self.norm_N = nn.BatchNorm1d(D)", "h = self.norm_N(h)", weight=3, smallest=3),
    Part(
        "batch norm without averages",
        "self.norm_N = nn.BatchNorm1d(D, track_running_stats=False)",
        "h = self.norm_N(h)",
        smallest=3,
    ),
    Part(
        "batch norm whose mean is zero",
        """
        self.first_N = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D))
        self.second_N = nn.Sequential(nn.Linear(D, D, bias=False), nn.BatchNorm1d(D))
        """,
        "h = torch.tanh(self.second_N(self.first_N(h)))",
        smallest=3,
    ),
    Part("dropout", "self.drop_N = nn.Dropout(P)", "h = self.drop_N(h)", weight=2),
    Part("alpha dropout", "self.drop_N = nn.AlphaDropout(P)", "h = self.drop_N(h)", weight=0.5),
    Part("functional dropout", "", "h = F.dropout(h, P, self.training)"),
    _NOISE,
    Part("drop path", "", "h = h * (torch.rand(h.size(0), 1) > 0.3) if self.training else h"),
    Part(
        "noise on weights",
        "self.w_N = nn.Parameter(torch.eye(D))",
        "h = h @ (self.w_N + 0.1 * torch.randn(D, D))",
    ),
    Part("one draw for all", "", "h = h * (0.5 + torch.rand(1)) if self.training else h"),
    Part(
        "layers skipped at random",
        "self.linear_N = nn.Linear(D, D)",
        """
        if self.training and torch.rand(1).item() < 0.5:
            h = h + self.linear_N(h)
        """,
    ),
    Part(
        "weight norm",
        "self.linear_N = torch.nn.utils.parametrizations.weight_norm(nn.Linear(D, D))",
        "h = torch.tanh(self.linear_N(h))",
    ),
    Part(
        "spectral norm",
        "self.linear_N = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(D, D))",
        "h = torch.tanh(self.linear_N(h))",
        weight=0.5,
    ),
    Part(
        "zero weights",
        "self.linear_N = nn.Linear(D, D); nn.init.zeros_(self.linear_N.weight)",
        "h = h + self.linear_N(h)",
    ),
    Part(
        "bottleneck that begins with zeros",
        """
        self.down_N, self.up_N = nn.Linear(D, 3), nn.Linear(3, D)
        nn.init.zeros_(self.up_N.weight), nn.init.zeros_(self.up_N.bias)
        """,
        "h = h + self.up_N(torch.relu(self.down_N(h)))",
    ),
    Part(
        "experts",
        "self.router_N, self.experts_N = nn.Linear(D, 2), nn.ModuleList(nn.Linear(D, D) for _ in range(2))",
        """
        chosen_N = self.router_N(h).argmax(-1)
        mixed_N = torch.zeros_like(h)
        for number, expert in enumerate(self.experts_N):
            rows = (chosen_N == number).nonzero().squeeze(-1)
            if len(rows):
                mixed_N = mixed_N.index_add(0, rows, expert(h[rows]))
        h = h + mixed_N
        """,
    ),
    Part(
        "running mean by hand",
        'self.register_buffer("mean_N", torch.zeros(D))',
        """
        if self.training:
            self.mean_N.mul_(0.9).add_(0.1 * h.detach().mean(0))
        h = h - self.mean_N
        """,
    ),
    Part(
        "running mean kept as an attribute",
        "self.mean_N = torch.zeros(D)",
        """
        if self.training:
            self.mean_N = 0.9 * self.mean_N + 0.1 * h.detach().mean(0)
        h = h - self.mean_N
        """,
    ),
    Part(
        "running maximum",
        'self.register_buffer("peak_N", torch.zeros(()))',
        """
        with torch.no_grad():
            self.peak_N.copy_(torch.maximum(self.peak_N, h.abs().max()))
        h = h / (1 + self.peak_N)
        """,
        weight=0.5,
    ),
    Part(
        "samples counted",
        'self.register_buffer("seen_N", torch.zeros((), dtype=torch.long))',
        """
        self.seen_N += h.size(0)
        h = h * (1 + 1 / (1 + self.seen_N.double()))
        """,
        weight=0.5,
    ),
    Part("centered", "", "h = h - h.mean(0)", weight=0.6),
    Part("divided by the norm of the batch", "", "h = h / h.norm()", weight=0.3),
    Part("samples compared", "", "h = h + 0.1 * torch.softmax(h @ h.t(), -1) @ h", weight=0.4),
    Part("normalized", "", "h = F.normalize(h, dim=-1)"),
    Part("divided by the batch size", "", "h = h * (4 / h.size(0))", weight=0.3),
    Part("shuffled features", "", "h = h[:, torch.randperm(D)] if self.training else h", weight=0.4),
    Part(
        "mixed with a shuffled batch",
        "",
        "h = 0.9 * h + 0.1 * h[torch.randperm(h.size(0))] if self.training else h",
        weight=0.4,
    ),
    Part(
        "codebook",
        "self.codes_N = nn.Embedding(5, D)",
        """
        near_N = torch.cdist(h, self.codes_N.weight).argmin(-1)
        h = h + 0.5 * self.codes_N(near_N)
        """,
    ),
)

SEQUENCE_PARTS = (
    Part("GRU", _GRU, "h = self.rnn_N(h)[0]", weight=2),
    Part("LSTM", _LSTM, "h, _ = self.rnn_N(h)"),
    Part(
        "bidirectional GRU with dropout",
        "self.rnn_N = nn.GRU(D, 3, num_layers=2, dropout=P, bidirectional=True, batch_first=BATCH_FIRST)",
        "h, _ = self.rnn_N(h)",
    ),
    Part(
        "packed GRU",
        _GRU,
        f"""
        {_PACK}
        h, _ = pad_packed_sequence(self.rnn_N(packed_N)[0], batch_first=BATCH_FIRST)
        """,
        weight=2,
    ),
    Part(
        "packed LSTM, padded to the input's length",
        _LSTM,
        f"""
        {_PACK}
        packed_N, length = self.rnn_N(packed_N)[0], h.size(TIME)
        h, _ = pad_packed_sequence(packed_N, batch_first=BATCH_FIRST, total_length=length)
        """,
    ),
    Part(
        "transformer layer",
        _TRANSFORMER,
        "h = self.layer_N(h)",
        weight=2,
    ),
    Part(
        "transformer layer with padding",
        _TRANSFORMER,
        """
        alive_N = torch.arange(h.size(TIME))[None] < lengths[:, None]
        h = self.layer_N(h, src_key_padding_mask=~alive_N)
        """,
        weight=2,
    ),
    Part(
        "causal attention",
        "self.attention_N = nn.MultiheadAttention(D, 2, batch_first=BATCH_FIRST)",
        """
        causal_N = torch.ones(h.size(TIME), h.size(TIME), dtype=torch.bool).triu(1)
        h = h + self.attention_N(h, h, h, attn_mask=causal_N, need_weights=False)[0]
        """,
    ),
    Part(
        "positions",
        "self.places_N = nn.Embedding(32, D)",
        "h = h + self.places_N(torch.arange(h.size(TIME))).unsqueeze(BATCH)",
    ),
    Part("layer norm", "self.norm_N = nn.LayerNorm(D)", "h = self.norm_N(h)"),
    Part("linear", "self.linear_N = nn.Linear(D, D)", "h = torch.relu(self.linear_N(h))"),
    Part("dropout", "self.drop_N = nn.Dropout(P)", "h = self.drop_N(h)"),
    Part(
        "dropout of whole features",
        "",
        "h = h * F.dropout(torch.ones_like(h.narrow(TIME, 0, 1)), P, self.training)",
    ),
    Part(
        "dropout along time",
        "",
        "h = h * F.dropout(torch.ones_like(h.narrow(BATCH, 0, 1)), P, self.training)",
    ),
    Part(
        "dropout of time steps",
        "",
        "h = h * (torch.rand(h.size(TIME), 1) > 0.2).unsqueeze(BATCH) if self.training else h",
    ),
    Part(
        "flattened dropout", "", "h = F.dropout(h.flatten(0, 1), P, self.training).unflatten(0, h.shape[:2])"
    ),
    _NOISE,
    Part(
        "batch norm",
        "self.norm_N = nn.BatchNorm1d(D)",
        "h = self.norm_N(h.flatten(0, 1)).unflatten(0, h.shape[:2])",
        smallest=3,
    ),
    Part(
        "convolution",
        "self.conv_N = nn.Conv1d(D, D, 3, padding=1)",
        "h = torch.relu(self.conv_N(h.movedim(TIME, -1)).movedim(-1, TIME))",
    ),
    Part(
        "state carried from batch to batch",
        "self.rnn_N, self.state_N = nn.GRU(D, D, batch_first=BATCH_FIRST), None",
        """
        of_evaluation = self.state_N is not None and torch.is_grad_enabled() and self.state_N.is_inference()
        if self.state_N is None or of_evaluation or self.state_N.size(1) != h.size(BATCH):
            self.state_N = torch.zeros(1, h.size(BATCH), D)
        h, state = self.rnn_N(h, self.state_N)
        self.state_N = state.detach()
        """,
    ),
    Part("centered over time", "", "h = h - h.mean(TIME, keepdim=True)"),
    Part("centered over samples", "", "h = h - h.mean(BATCH, keepdim=True)", weight=0.4),
    Part("sums over time", "", "h = h.cumsum(TIME) / (1 + h.size(TIME))"),
)

POOLS = (
    Part("mean over time", "", "h = h.mean(TIME)", weight=2),
    Part("maximum over time", "", "h = h.amax(TIME)"),
    Part("last step", "", "h = h.select(TIME, -1)"),
    Part("sum over time", "", "h = 0.3 * h.sum(TIME)"),
    Part(
        "mean over the steps that are there",
        "",
        """
        there_N = (torch.arange(h.size(TIME))[None] < lengths[:, None]).to(h.dtype)
        there_N = there_N.unsqueeze(-1).transpose(0, BATCH)
        h = (h * there_N).sum(TIME) / lengths[:, None]
        """,
        weight=2,
    ),
    Part(
        "last step that is there",
        "",
        "h = h.transpose(0, BATCH)[torch.arange(len(lengths)), (lengths - 1).clamp(max=h.size(TIME) - 1)]",
    ),
    Part(
        "last hidden state",
        _GRU,
        "h = self.rnn_N(h)[1][-1]",
        weight=2,
    ),
    Part(
        "last hidden state, packed",
        _LSTM,
        f"""
        {_PACK}
        h = self.rnn_N(packed_N)[1][0][-1]
        """,
        weight=2,
    ),
    Part(
        "attention over time",
        "self.score_N = nn.Linear(D, 1)",
        "h = (h * torch.softmax(self.score_N(h), TIME)).sum(TIME)",
    ),
)

IMAGE_PARTS = (
    Part(
        "convolution",
        "self.conv_N = nn.Conv2d(4, 4, 3, padding=1)",
        "h = torch.relu(self.conv_N(h))",
        weight=3,
    ),
    Part("batch norm", "self.norm_N = nn.BatchNorm2d(4)", "h = self.norm_N(h)", weight=2, smallest=3),
    Part("group norm", "self.norm_N = nn.GroupNorm(2, 4)", "h = self.norm_N(h)"),
    Part("instance norm", "self.norm_N = nn.InstanceNorm2d(4, affine=True)", "h = self.norm_N(h)"),
    Part("dropout", "self.drop_N = nn.Dropout(P)", "h = self.drop_N(h)"),
    Part("dropout of channels", "self.drop_N = nn.Dropout2d(P)", "h = self.drop_N(h)"),
    Part("residual", "self.conv_N = nn.Conv2d(4, 4, 3, padding=1)", "h = h + self.conv_N(torch.relu(h))"),
    Part(
        "squeeze and excite",
        "self.gate_N = nn.Linear(4, 4)",
        "h = h * torch.sigmoid(self.gate_N(h.mean((2, 3))))[:, :, None, None]",
    ),
    Part("scaled by the batch", "", "h = h / (1 + h.abs().amax((0, 2, 3), keepdim=True))", weight=0.4),
    Part("flipped at random", "", "h = h.flip(-1) if self.training and torch.rand(()).item() < 0.5 else h"),
    Part(
        "each flipped at random",
        "",
        """
        if self.training:
            h = torch.where((torch.rand(h.size(0)) < 0.5)[:, None, None, None], h.flip(-1), h)
        """,
    ),
)

WRAPPERS = (
    Wrapper("", weight=10),
    Wrapper("in a residual", ending=_RESIDUAL, weight=3),
    Wrapper(
        "behind a gate of zero",
        "self.gate_N = nn.Parameter(torch.zeros(1))",
        ending=_GATED,
    ),
    Wrapper(
        "behind gates of zero",
        "self.gate_N = nn.Parameter(torch.zeros(D))",
        ending=_GATED,
    ),
    Wrapper(
        "behind a small gate",
        "self.gate_N = nn.Parameter(torch.full((1,), 1e-5))",
        ending=_GATED,
    ),
    Wrapper("in training only", condition="self.training", ending=_RESIDUAL, weight=0.6),
    Wrapper("in evaluation only", condition="not self.training", ending=_RESIDUAL, weight=0.6),
    Wrapper("from epoch 1", condition="self.epoch >= 1", ending=_RESIDUAL),
    Wrapper("by a factor that the loop raises", ending="h = kept_N + self.factor * h"),
    Wrapper("after 4 calls", condition="self.calls > 4", ending=_RESIDUAL),
    Wrapper("after 4 steps in a buffer", condition="self.steps > 4", ending=_RESIDUAL),
    Wrapper("weighed by steps in a buffer", ending="h = kept_N + (self.steps - 1).clamp(0, 3) * 0.2 * h"),
    Wrapper("for batches of 4 or more", condition="h.size(BATCH) >= 4", ending=_RESIDUAL, weight=0.4),
)
"""The wrappers are for vectors and sequences of D features, not for images, which have 4 channels."""
