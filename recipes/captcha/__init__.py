"""Reading captchas: a convolutional network on images drawn by the `captcha` package.

    python -m recipes.captcha
    torchrun --nproc-per-node 3 -m recipes.captcha --preset large-batch
    python -m recipes.captcha read FILE --checkpoint out/captcha

`recipe.py` is the training, from top to bottom. Importing this package imports no torch: processes
that draw images need none.
"""
