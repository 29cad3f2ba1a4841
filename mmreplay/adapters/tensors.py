from mmreplay.adapters.torch import TensorBatch, TensorSequenceBatch, to_tensors
