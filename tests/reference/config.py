"""config.json as the fields that the model needs, named as in the checkpoint (model.md, 1.1)."""
import json
import os


class Config:
    def __init__(self, top):
        self.eos = top["eos_token_id"]
        for name, value in top["text_config"].items():
            setattr(self, name, value)
        ratios = list(self.compress_ratios)
        self.compress_ratios = ratios + [0] * (self.num_hidden_layers + self.num_nextn_predict_layers - len(ratios))

    @classmethod
    def load(cls, folder):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            return cls(json.load(f))

    def kv_source(self, layer):
        return max(s for s in self.kv_source_layer_ids if s <= layer)

    def index_source(self, layer):
        return max(s for s in self.index_source_layer_ids if s <= layer)

    @property
    def last_source(self):
        """The layer from which on a long prompt's layers run on its tail only; none: all run."""
        return max(self.kv_source_layer_ids, default=self.num_hidden_layers)
