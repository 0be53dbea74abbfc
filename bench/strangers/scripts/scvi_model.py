"""scvi-tools: its variational autoencoder of gene counts, on the synthetic cells it brings."""

import argparse

import scvi

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=128)
args = parser.parse_args()

adata = scvi.data.synthetic_iid(batch_size=1000, n_genes=2000)
scvi.model.SCVI.setup_anndata(adata, batch_key="batch", labels_key="labels")
model = scvi.model.SCVI(adata, n_layers=2, n_latent=30)
model.train(
    max_epochs=3,
    accelerator="gpu",
    devices=1,
    batch_size=args.batch_size,
    check_val_every_n_epoch=1,
)
model.save("scvi_model", overwrite=True)
