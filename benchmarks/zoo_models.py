"""Networks of many families, each tiny and with random weights, on which the library is tried.

Every case has a builder and one batch as a user's loader would yield it. Without `forward`, a mapping goes in as
keywords, a tuple as positions, and anything else (a tensor, a list of images) as the one argument: see `call`. Nothing
is downloaded; timm, transformers and torchvision are only imported when a case of theirs is built.

The weights are random, but the networks are not dead: `awake` draws what initialises to zero (last norms, heads, layer
scales) and gives each BatchNorm the statistics of a batch, for else many a deep network answers the same to all inputs.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

Build = Callable[[], nn.Module]
Batch = Callable[[int], Any]
Forward = Callable[[nn.Module, Any], Any]


@dataclass(frozen=True)
class Case:
    name: str
    build: Build
    """Deterministic once torch.manual_seed was called."""
    batch: Batch
    """From a number of samples to one batch of so many, always the same."""
    forward: Forward | None = None
    """Only where `call` would not do."""
    n: int = 8
    """Samples a batch."""


def call(model: nn.Module, batch: Any) -> Any:
    """How a batch goes in where a case does not say."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def case(name: str, build: Build, batch: Batch, forward: Forward | None = None, n: int = 8) -> Case:
    return Case(name, lambda: awake(build(), batch(n), forward or call), batch, forward, n)


@torch.no_grad()
def awake(model: nn.Module, batch: Any, forward: Forward) -> nn.Module:
    """Draw the weights that initialise to (nearly) zero, and give every BatchNorm the statistics of the batch."""
    for name, weight in model.named_parameters():
        if not name.endswith("bias") and float(weight.abs().max()) < 1e-3:
            _ = nn.init.normal_(weight, std=0.02) if weight.dim() > 1 else nn.init.ones_(weight)
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    if norms:
        modes = {module: module.training for module in model.modules()}
        momenta = [norm.momentum for norm in norms]
        model.eval()
        for norm in norms:
            norm.train()
            norm.momentum = 1.0
        forward(model, batch)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
    return model


# Batches


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Batch:
    return lambda n: torch.randn(n, *shape, generator=drawn(seed)).to(dtype)


def tokens(length: int = 12, vocabulary: int = 64, seed: int = 0) -> Batch:
    """Numbers from 3 on: 0, 1 and 2 are the pad, the beginning and the end."""
    return lambda n: torch.randint(3, vocabulary, (n, length), generator=drawn(seed))


def mask(length: int = 12) -> Batch:
    """Ones where there is text: sentences of different lengths, padded on the right."""
    return lambda n: (torch.arange(length) < torch.randint(length // 2, length + 1, (n, 1), generator=drawn(9))).long()


def together(*parts: Batch) -> Batch:
    return lambda n: tuple(part(n) for part in parts)


def named(**parts: Batch) -> Batch:
    return lambda n: {name: part(n) for name, part in parts.items()}


def image(size: int = 32, seed: int = 0) -> Batch:
    """Noise about a colour, else all images would look alike to a mean over their pixels."""
    grain, colour = noise(3, size, size, seed=seed), noise(3, 1, 1, seed=seed + 100)
    return lambda n: grain(n) + colour(n)


def pictures(size: int = 64) -> Batch:
    """A list of images of different widths, as detectors take them."""
    return lambda n: [torch.rand(3, size, size - 8 * (i % 2), generator=drawn(i)) for i in range(n)]


TEXT = named(input_ids=tokens(), attention_mask=mask())
PAIR = named(input_ids=tokens(), attention_mask=mask(), decoder_input_ids=tokens(8, seed=1))


# torchvision


def vision(submodule: str = "") -> Any:
    from repairability._vision import torchvision

    torchvision()
    return torchvision(submodule)


def tv(path: str, *args: Any, num_classes: int = 10, **options: Any) -> Build:
    """A class or function of `torchvision.models`, by its path, with everything as its own arguments."""
    module, _, name = path.rpartition(".")
    return lambda: getattr(vision(f"models.{module}"), name)(*args, num_classes=num_classes, **options)


def narrow(net: Any, block: Any, width: int, blocks: Sequence[int], kinds: Sequence[Any] = ((),) * 4) -> Any:
    """A ResNet (or a video ResNet, whose stages also have a kind of convolution) with other widths and depths."""
    net.inplanes = 64
    for i in range(4):
        stage = net._make_layer(block, *kinds[i], width << i, blocks[i], stride=2 if i else 1)
        setattr(net, f"layer{i + 1}", stage)
    net.fc = nn.Linear((width << 3) * block.expansion, 10)
    return net


def resnet(kind: str = "BasicBlock", width: int = 16, blocks: Sequence[int] = (1, 1, 1, 1), **options: Any) -> Any:
    module = vision("models.resnet")
    block = getattr(module, kind)
    return narrow(module.ResNet(block, [1] * 4, num_classes=10, **options), block, width, blocks)


def video_resnet(first: str, rest: str, stem: str = "BasicStem") -> Any:
    module = vision("models.video.resnet")
    kinds = [getattr(module, kind) for kind in (first, rest, rest, rest)]
    net = module.VideoResNet(module.BasicBlock, kinds, [1] * 4, getattr(module, stem), num_classes=10)
    return narrow(net, module.BasicBlock, 16, (1, 1, 1, 1), [(kind,) for kind in kinds])


def lively(net: Any) -> Any:
    """Draw the convolutions and linear layers so that a signal neither fades nor grows."""
    for module in net.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return net


def headed(make: Callable[[], Any], channels: int) -> Any:
    """VGG and AlexNet have a head of a hundred million weights; make it without memory, and put a small one there."""
    with torch.device("meta"):
        net = make()
    net.avgpool = nn.AdaptiveAvgPool2d(2)
    net.classifier = nn.Sequential(nn.Dropout(), nn.Linear(4 * channels, 32), nn.ReLU(), nn.Linear(32, 10))
    return lively(net.to_empty(device="cpu"))


def vgg(batch_norm: bool) -> Any:
    module = vision("models.vgg")
    widths = [16, "M", 32, "M", 32, 32, "M", 64, "M"]
    return headed(lambda: module.VGG(module.make_layers(widths, batch_norm), init_weights=False), 64)


def alexnet() -> Any:
    """With a sixth of its channels: at full width its filters have up to 3,456 weights."""
    net = headed(vision("models.alexnet").AlexNet, 42)
    widths = [3, 10, 32, 64, 42, 42]
    places = [i for i, layer in enumerate(net.features) if isinstance(layer, nn.Conv2d)]
    for place, inputs, outputs in zip(places, widths, widths[1:], strict=False):
        layer = net.features[place]
        net.features[place] = nn.Conv2d(inputs, outputs, layer.kernel_size, layer.stride, layer.padding)
    return net


def configured(kind: str) -> Any:
    """Networks whose settings are made of torchvision's own classes."""
    if kind == "regnet":
        module = vision("models.regnet")
        blocks = module.BlockParams.from_init_params(depth=5, w_0=16, w_a=16, w_m=2, group_width=8, se_ratio=0.25)
        return module.RegNet(blocks, num_classes=10, stem_width=16)
    if kind == "convnext":
        module = vision("models.convnext")
        blocks = [module.CNBlockConfig(*widths, 1) for widths in ((16, 32), (32, 48), (48, None))]
        return module.ConvNeXt(blocks, layer_scale=1.0, num_classes=10)
    module = vision("models.swin_transformer")
    parts = {"block": module.SwinTransformerBlockV2, "downsample_layer": module.PatchMergingV2}
    return module.SwinTransformer([2, 2], 16, [2, 2], [2, 4], [4, 4], num_classes=10, **parts)


def efficientnet(fused: bool) -> Any:
    module = vision("models.efficientnet")
    first = module.FusedMBConvConfig if fused else module.MBConvConfig
    settings = [first(1, 3, 1, 16, 16, 1), first(4, 3, 2, 16, 24, 2), module.MBConvConfig(4, 5, 2, 24, 32, 2)]
    return module.EfficientNet(settings, dropout=0.2, num_classes=10)


def mvit() -> Any:
    module = vision("models.video.mvit")
    thirds = {"kernel_q": [3, 3, 3], "kernel_kv": [3, 3, 3], "stride_kv": [1, 2, 2]}
    settings = [
        module.MSBlockConfig(num_heads=1, input_channels=16, output_channels=32, stride_q=[1, 1, 1], **thirds),
        module.MSBlockConfig(num_heads=2, input_channels=32, output_channels=32, stride_q=[1, 2, 2], **thirds),
    ]
    flags = dict.fromkeys(("residual_pool", "residual_with_cls_embed", "rel_pos_embed", "proj_after_attn"), True)
    return module.MViT((32, 32), 4, settings, num_classes=10, **flags)


def s3d() -> Any:
    net = vision("models.video.s3d").S3D(num_classes=10)
    net.avgpool = nn.AdaptiveAvgPool3d((2, 1, 1))  # its own wants 224 pixels
    return net


def segmentation(kind: str) -> Any:
    module, utils = vision(f"models.segmentation.{kind}"), vision("models._utils")
    if kind == "lraspp":
        features = vision("models.mobilenetv3").mobilenet_v3_small(width_mult=0.5, dilated=True).features
        backbone = utils.IntermediateLayerGetter(features, {"1": "low", "12": "high"})
        return module.LRASPP(backbone, 8, features[12].out_channels, 5, 32)
    backbone = utils.IntermediateLayerGetter(resnet(), {"layer2": "aux", "layer3": "out"})
    auxiliary = vision("models.segmentation.fcn").FCNHead(32, 5)
    if kind == "fcn":
        return module.FCN(backbone, module.FCNHead(64, 5), auxiliary)
    return module.DeepLabV3(backbone, module.DeepLabHead(64, 5, (2, 4)), auxiliary)


def suppressed(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Non-maximum suppression in plain torch."""
    order = scores.argsort(descending=True, stable=True)
    overlap = vision("ops.boxes").box_iou(boxes[order], boxes[order]) > iou_threshold
    kept = torch.ones(len(order), dtype=torch.bool)
    for i in range(len(order)):
        if kept[i]:
            kept[i + 1 :] &= ~overlap[i, i + 1 :]
    return order[kept]


def detector(kind: str) -> Any:
    """A detector with a feature pyramid.

    Where torchvision's compiled operators are missing, `suppressed` and torchvision's own roi_align in Python (which it
    would compile for seconds) stand in for them, in the whole process.
    """
    if not vision("extension")._has_ops():
        align = vision("ops.roi_align")
        align._roi_align = getattr(align._roi_align, "__wrapped__", align._roi_align)
        vision("ops.boxes").nms = suppressed
    models, sizes = vision("models.detection"), {"min_size": 64, "max_size": 64}
    if kind == "ssdlite":
        options = {"weights_backbone": None, "num_classes": 5, "width_mult": 0.25, "topk_candidates": 50}
        return models.ssdlite320_mobilenet_v3_large(**options, detections_per_img=10)
    body = resnet(norm_layer=vision("ops.misc").FrozenBatchNorm2d if kind.endswith("RCNN") else None)
    returned = {"layer2": "0", "layer3": "1", "layer4": "2"}
    pyramid = vision("models.detection.backbone_utils").BackboneWithFPN(body, returned, [32, 64, 128], 32)
    anchors = vision("models.detection.anchor_utils").AnchorGenerator(((8,), (16,), (32,), (64,)), ((1.0,),) * 4)
    if kind in ("RetinaNet", "FCOS"):
        few = {"score_thresh": 0.0, "topk_candidates": 50, "detections_per_img": 10}
        net = getattr(models, kind)(pyramid, 5, anchor_generator=anchors, **few, **sizes)
        lively(net.head)
        return net
    faster, masks, keypoints = models.faster_rcnn, models.mask_rcnn, models.keypoint_rcnn
    heads = {"box_head": faster.TwoMLPHead(32 * 7 * 7, 32), "box_predictor": faster.FastRCNNPredictor(32, 5)}
    if kind == "MaskRCNN":
        heads["mask_head"] = masks.MaskRCNNHeads(32, (16, 16), 1)
        heads["mask_predictor"] = masks.MaskRCNNPredictor(16, 16, 5)
    if kind == "KeypointRCNN":
        heads["keypoint_head"] = keypoints.KeypointRCNNHeads(32, (16, 16))
        heads["keypoint_predictor"] = keypoints.KeypointRCNNPredictor(16, 4)
    few = {"rpn_pre_nms_top_n_test": 20, "rpn_post_nms_top_n_test": 6, "box_detections_per_img": 3}
    return getattr(models, kind)(pyramid, rpn_anchor_generator=anchors, **heads, **few, **sizes)


def maps(model: Any, images: list[Tensor]) -> Any:
    """What a one-stage detector computes before it makes boxes of it."""
    return model.head(list(model.backbone(model.transform(images)[0].tensors).values()))


FILM = noise(3, 4, 32, 32)
MOBILE: dict[str, Any] = {"width_mult": 0.25}

TORCHVISION = (
    case("torchvision/resnet18", lambda: resnet(blocks=(2, 2, 2, 2)), image()),
    case("torchvision/resnet50", lambda: resnet("Bottleneck"), image()),
    case("torchvision/resnext50", lambda: resnet("Bottleneck", groups=4, width_per_group=32), image()),
    case("torchvision/vgg11", lambda: vgg(False), image()),
    case("torchvision/vgg11_bn", lambda: vgg(True), image()),
    case("torchvision/alexnet", alexnet, image(64)),
    case("torchvision/squeezenet", tv("squeezenet.SqueezeNet", "1_1"), image(48)),
    case("torchvision/densenet121", tv("densenet.DenseNet", 8, (2, 2, 2, 2), 16), image()),
    case("torchvision/mobilenet_v2", tv("mobilenetv2.MobileNetV2", **MOBILE), image()),
    case("torchvision/mobilenet_v3_small", tv("mobilenetv3.mobilenet_v3_small", **MOBILE), image()),
    case("torchvision/mobilenet_v3_large", tv("mobilenetv3.mobilenet_v3_large", **MOBILE), image()),
    case("torchvision/efficientnet_b0", lambda: efficientnet(False), image()),
    case("torchvision/efficientnet_v2_s", lambda: efficientnet(True), image()),
    case("torchvision/regnet_y", lambda: configured("regnet"), image()),
    case("torchvision/shufflenet_v2", tv("shufflenetv2.ShuffleNetV2", [2, 2, 2], [8, 16, 32, 64, 128]), image()),
    case("torchvision/mnasnet", tv("mnasnet.MNASNet", 0.25), image()),
    case("torchvision/googlenet (auxiliary logits)", tv("googlenet.GoogLeNet", init_weights=False), image(64)),
    case("torchvision/convnext_tiny", lambda: configured("convnext"), image()),
    case("torchvision/vit", tv("vision_transformer.VisionTransformer", 32, 8, 2, 4, 32, 64), image()),
    case("torchvision/swin_t", tv("swin_transformer.SwinTransformer", [2, 2], 16, [2, 2], [2, 4], [4, 4]), image()),
    case("torchvision/swin_v2", lambda: configured("swin_v2"), image()),
    case("torchvision/maxvit", tv("maxvit.MaxVit", (32, 32), 16, 2, [16, 32], [1, 1], 8, 0.0), image()),
    case("torchvision/fcn", lambda: segmentation("fcn"), image(64), n=4),
    case("torchvision/deeplabv3", lambda: segmentation("deeplabv3"), image(64), n=4),
    case("torchvision/lraspp", lambda: segmentation("lraspp"), image(64), n=4),
    case("torchvision/fasterrcnn", lambda: detector("FasterRCNN"), pictures(), n=4),
    case("torchvision/maskrcnn", lambda: detector("MaskRCNN"), pictures(), n=4),
    case("torchvision/keypointrcnn", lambda: detector("KeypointRCNN"), pictures(), n=4),
    case("torchvision/retinanet", lambda: detector("RetinaNet"), pictures(), n=4),
    case("torchvision/retinanet (before the boxes)", lambda: detector("RetinaNet"), pictures(), maps, n=4),
    case("torchvision/fcos", lambda: detector("FCOS"), pictures(), n=4),
    case("torchvision/ssdlite", lambda: detector("ssdlite"), pictures(), n=4),
    case("torchvision/r3d_18", lambda: video_resnet("Conv3DSimple", "Conv3DSimple"), FILM),
    case("torchvision/mc3_18", lambda: video_resnet("Conv3DSimple", "Conv3DNoTemporal"), FILM),
    case("torchvision/r2plus1d_18", lambda: video_resnet("Conv2Plus1D", "Conv2Plus1D", "R2Plus1dStem"), FILM),
    case("torchvision/s3d", s3d, noise(3, 16, 32, 32), n=4),
    case("torchvision/mvit", mvit, FILM),
    case(
        "torchvision/swin3d",
        tv("video.swin_transformer.SwinTransformer3d", [2, 4, 4], 16, [2, 2], [2, 4], [2, 4, 4]),
        FILM,
    ),
    case(
        "torchvision/raft_small (two images)",
        lambda: vision("models.optical_flow").raft_small(),
        together(image(128), image(128, seed=1)),
        n=2,
    ),
)


# timm


def timm(name: str, **options: Any) -> Build:
    """A registered name, or `module.Class` below `timm.models` where the name leaves too little to choose."""

    def build() -> Any:
        vision()
        if "." not in name:
            return importlib.import_module("timm").create_model(name, num_classes=10, **options)
        module, kind = name.split(".")
        return getattr(importlib.import_module(f"timm.models.{module}"), kind)(num_classes=10, **options)

    return build


def mixer(block: str, mlp: str, ratio: Any = 4) -> Any:
    vision()
    module = importlib.import_module("timm.models.mlp_mixer")
    parts = [getattr(module, name) for name in (block, mlp)]
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_blocks": 2, "mlp_ratio": ratio}
    return module.MlpMixer(num_classes=10, block_layer=parts[0], mlp_layer=parts[1], **sizes)


def repvgg() -> Any:
    vision()
    module = importlib.import_module("timm.models.byobnet")
    blocks = module._rep_vgg_bcfg(d=(1, 2, 2, 1), wf=(0.25,) * 4)
    return module.ByobNet(module.ByoModelCfg(blocks=blocks, stem_type="rep", stem_chs=16), num_classes=10)


PATCHES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "num_heads": 2}
STAGES = {"layers": (1, 1, 1, 1), "channels": (32, 32, 64, 64)}
DIMS = {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48)}

SWIN = {"img_size": 32, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4), "window_size": 4}
PYRAMID = {"embed_dims": (16, 32, 32, 64), "depths": (1, 1, 1, 1)}
LEVIT = {"img_size": 64, "embed_dim": (32, 48, 64), "key_dim": 8, "num_heads": (2, 3, 4), "depth": (1, 1, 1)}
COAT = {"img_size": 64, "embed_dims": (64, 64, 64, 64), "serial_depths": (1, 1, 1, 1), "parallel_depth": 1}
MAXVIT = {"depths": (1, 1, 1, 1), "embed_dim": (32, 32, 64, 64)}
SEQUENCER = {"layers": (1, 1, 1, 1), "embed_dims": (16, 32, 32, 32), "hidden_sizes": (8, 16, 16, 16)}

TIMM = (
    case("timm/resnet (GroupNorm)", timm("resnet50_gn", **STAGES), image(64)),
    case("timm/resnetv2 (standardised)", timm("resnetv2.ResNetV2", layers=(1, 1), channels=(128, 256)), image()),
    case("timm/nfnet", timm("dm_nfnet_f0", depths=(1, 1, 1, 1), channels=(32, 64, 64, 96), group_size=16), image(64)),
    case("timm/nf_resnet", timm("nf_resnet26", depths=(1, 1, 1, 1), channels=(32, 64, 64, 96)), image(64)),
    case("timm/res2net", timm("res2net50_26w_4s", **STAGES), image()),
    case("timm/skresnet", timm("skresnet18", **STAGES), image()),
    case("timm/efficientnet", timm("test_efficientnet"), image()),
    case("timm/efficientnet (EvoNorm)", timm("test_efficientnet_evos"), image(64)),
    case("timm/mobilenetv3", timm("mobilenetv3_small_050"), image(64)),
    case("timm/mobilenetv4", timm("mobilenetv4_conv_small_035"), image(64)),
    case("timm/ghostnet", timm("ghostnet_050"), image(64)),
    case("timm/convnext", timm("test_convnext"), image(64)),
    case("timm/convnextv2", timm("convnextv2_atto", **DIMS), image(64)),
    case("timm/edgenext", timm("edgenext_xx_small", **DIMS), image(64)),
    case("timm/mambaout", timm("mambaout_femto", **DIMS), image(64)),
    case("timm/vit", timm("vit_tiny_patch16_224", depth=2, **PATCHES), image()),
    case("timm/vit (relative positions)", timm("vit_relpos_small_patch16_224", depth=2, **PATCHES), image()),
    case("timm/deit (distilled)", timm("deit_tiny_distilled_patch16_224", depth=2, **PATCHES), image()),
    case("timm/beit", timm("beit_base_patch16_224", depth=2, **PATCHES), image()),
    case("timm/eva02", timm("eva02_tiny_patch14_224", depth=2, **PATCHES), image()),
    case("timm/cait", timm("cait_xxs24_224", depth=2, **PATCHES), image()),
    case("timm/xcit", timm("xcit_nano_12_p16_224", depth=2, cls_attn_layers=1, **PATCHES), image(32)),
    case("timm/swin", timm("swin_tiny_patch4_window7_224", **SWIN), image()),
    case("timm/twins", timm("twins_svt_small", img_size=64, num_heads=(1, 2, 2, 4), **PYRAMID), image(64)),
    case("timm/davit", timm("davit_tiny", num_heads=(2, 2, 2, 2), **PYRAMID), image(64)),
    case("timm/mixer", lambda: mixer("MixerBlock", "Mlp", (0.5, 4.0)), image()),
    case("timm/resmlp", lambda: mixer("ResBlock", "Mlp"), image()),
    case("timm/gmlp", lambda: mixer("SpatialGatingBlock", "GatedMlp"), image()),
    case("timm/levit", timm("levit_128s", **LEVIT), image(64)),
    case("timm/coat", timm("coat_tiny", **COAT), image(64)),
    case("timm/regnet", timm("regnety_002"), image(64)),
    case("timm/repvgg", repvgg, image()),
    case("timm/mobileone", timm("mobileone_s0"), image()),
    case("timm/hrnet (maps)", timm("hrnet_w18_small", features_only=True), image(64)),
    case("timm/mobilevit", timm("mobilevit_xxs"), image(64)),
    case("timm/maxvit", timm("maxvit_pico_rw_256", img_size=64, **MAXVIT), image(64)),
    case("timm/sequencer (LSTM)", timm("sequencer2d_s", **SEQUENCER), image(64)),
    case("timm/vovnet", timm("ese_vovnet19b_slim_dw"), image()),
)


# transformers


def hf(name: str, **options: Any) -> Build:
    def build() -> Any:
        vision()
        model = getattr(importlib.import_module("transformers"), name)
        return model(model.config_class(**{**SPECIAL, **options}))

    return build


def encoded(n: int) -> Any:
    """What a tokenizer returns."""
    vision()
    return importlib.import_module("transformers").BatchEncoding(TEXT(n))


SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
WORDS = {**WIDTHS, "vocab_size": 64, "max_position_embeddings": 64}
GROUPED = {**WORDS, "num_key_value_heads": 2}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64}
DISTILBERT = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 64, "max_position_embeddings": 64}
ALBERT = {**WORDS, "embedding_size": 16}
OPT = {**WORDS, "ffn_dim": 64, "word_embed_proj_dim": 32}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 64}
SIZES = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
HALVES = {f"{half}_{what}": size for half in ("encoder", "decoder") for what, size in SIZES.items()}
BART = {"d_model": 32, "vocab_size": 64, "max_position_embeddings": 64, **HALVES}
WHISPER = {"d_model": 32, "vocab_size": 64, "num_mel_bins": 16, "max_source_positions": 20, **HALVES}
QWEN = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
MAMBA = {"hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "time_step_rank": 4, "vocab_size": 64}
VIT = {**WIDTHS, "image_size": 32, "patch_size": 8}
CLIP = {"text_config": {**WORDS, **SPECIAL}, "vision_config": VIT, "projection_dim": 16}
EARS = {"conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embedding_groups": 4}
WAV2VEC2 = {**WIDTHS, **EARS, "num_conv_pos_embeddings": 16, "vocab_size": 32}
SEGFORMER = {"hidden_sizes": (16, 16, 32, 32), "num_attention_heads": (1, 1, 2, 2), "decoder_hidden_size": 32}

BOTH = named(input_ids=tokens(), pixel_values=image(), attention_mask=mask())
SPOKEN = named(input_features=noise(16, 40), decoder_input_ids=tokens(6))
MASKED = named(attention_mask=mask(), input_ids=tokens())
PIXELS = named(pixel_values=image())

TRANSFORMERS = (
    case("transformers/bert (mask first)", hf("BertForSequenceClassification", **WORDS), MASKED),
    case("transformers/bert (masked words, tied)", hf("BertForMaskedLM", **WORDS), TEXT),
    case("transformers/distilbert (BatchEncoding)", hf("DistilBertForSequenceClassification", **DISTILBERT), encoded),
    case("transformers/roberta", hf("RobertaForTokenClassification", **WORDS), TEXT),
    case("transformers/albert (repeated layers)", hf("AlbertForSequenceClassification", **ALBERT), TEXT),
    case("transformers/electra", hf("ElectraForPreTraining", **WORDS), TEXT),
    case("transformers/deberta_v2", hf("DebertaV2Model", **WORDS), TEXT),
    case("transformers/gpt2 (tied)", hf("GPT2LMHeadModel", **GPT2), TEXT),
    case("transformers/llama (tied)", hf("LlamaForCausalLM", **GROUPED, tie_word_embeddings=True), TEXT),
    case("transformers/llama (untied)", hf("LlamaForCausalLM", **GROUPED), named(input_ids=tokens())),
    case("transformers/opt", hf("OPTForCausalLM", **OPT), TEXT),
    case("transformers/bloom", hf("BloomForCausalLM", **BLOOM), TEXT),
    case("transformers/gpt_neox", hf("GPTNeoXForCausalLM", **WORDS), TEXT),
    case("transformers/gemma", hf("GemmaForCausalLM", **GROUPED, head_dim=8), TEXT),
    case("transformers/mixtral (experts)", hf("MixtralForCausalLM", **GROUPED, num_local_experts=4), TEXT),
    case("transformers/qwen2_moe (experts)", hf("Qwen2MoeForCausalLM", **GROUPED, **QWEN), TEXT),
    case("transformers/mamba", hf("MambaForCausalLM", **MAMBA), named(input_ids=tokens())),
    case("transformers/t5", hf("T5ForConditionalGeneration", **T5), PAIR),
    case("transformers/bart", hf("BartForConditionalGeneration", **BART), PAIR),
    case("transformers/vit", hf("ViTForImageClassification", **VIT), PIXELS),
    case("transformers/segformer", hf("SegformerForSemanticSegmentation", **SEGFORMER), PIXELS),
    case("transformers/clip (text and images)", hf("CLIPModel", **CLIP), BOTH),
    case("transformers/whisper", hf("WhisperForConditionalGeneration", **WHISPER), SPOKEN),
    case("transformers/wav2vec2", hf("Wav2Vec2ForCTC", **WAV2VEC2), named(input_values=noise(800))),
)


# By hand


def convnet(
    norm: Callable[[int], nn.Module] | None = nn.BatchNorm2d,
    activation: Callable[[], nn.Module] = nn.ReLU,
    wrap: Callable[[nn.Conv2d], nn.Module] = lambda convolution: convolution,
    **convolution: Any,
) -> Any:
    """Three convolutions and a linear layer."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 32)):
        layers.append(wrap(nn.Conv2d(inputs, outputs, 3, **{"padding": 1, **convolution})))
        layers += [norm(outputs)] if norm else []
        layers += [activation(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class Residual(nn.Module):
    """Fully connected residual blocks with a norm over the features."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm(32) for _ in range(3))
        self.wide = nn.ModuleList(nn.Linear(32, 64) for _ in range(3))
        self.back = nn.ModuleList(nn.Linear(64, 32) for _ in range(3))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Any:
        for norm, wide, back in zip(self.norms, self.wide, self.back, strict=True):
            x = x + back(F.gelu(wide(norm(x))))
        return self.head(x)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm2d(16), nn.BatchNorm2d(32)
        self.middle, self.up = nn.Conv2d(32, 32, 3, padding=1), nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.last = nn.Conv2d(32, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        fine = F.relu(self.norm1(self.down1(x)))
        coarse = F.relu(self.middle(F.relu(self.norm2(self.down2(fine)))))
        return self.last(torch.cat([fine, self.up(coarse)], dim=1))


class TwoInputs(nn.Module):
    """An image and a row of numbers, by position or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.numbers, self.head = convnet(), nn.Linear(6, 10), nn.Linear(20, 4)

    def forward(self, image: Tensor, numbers: Tensor) -> Any:
        return self.head(torch.cat([self.image(image), F.relu(self.numbers(numbers))], dim=1))


class Both(NamedTuple):
    label: Tensor
    box: Tensor


class Outputs(nn.Module):
    """Two heads, and their answers put together in one of several ways."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.label, self.box, self.kind = convnet(), nn.Linear(10, 5), nn.Linear(10, 4), kind

    def forward(self, x: Tensor) -> Any:
        features = F.relu(self.body(x))
        both = Both(self.label(features), self.box(features))
        nested = {"label": both.label, "more": [{"box": both.box}], "version": 1, "loss": None}
        return {"named": both, "tuple": tuple(both), "dict": nested}[self.kind]


class Repeated(nn.Module):
    """A convolution called twice, under one name or under two."""

    def __init__(self, names: int) -> None:
        super().__init__()
        self.stem, self.first, self.head = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 10)
        self.second = self.first if names == 2 else None

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.first(F.relu(self.stem(x))))
        x = F.relu((self.second or self.first)(x))
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    """Words to an LSTM to the next word, with or without the embedding as the head."""

    def __init__(self, tied: bool = False, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.recurrent = nn.LSTM(32, 32, batch_first=True, **options)
        self.head = nn.Linear(64 if options else 32, 64, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Any:
        return self.head(self.recurrent(self.embedding(words))[0])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Linear(16, 32), nn.Linear(32, 5)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        x = self.embedding(x)
        return self.head((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


class Functional(nn.Module):
    """A layer whose weight is used, but which is never called; and a bare parameter used as a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(32, 64), nn.Linear(32, 10)
        self.matrix = nn.Parameter(torch.randn(64, 32) / 8)

    def forward(self, x: Tensor) -> Any:
        return self.head(F.relu(F.linear(x, self.fc.weight, self.fc.bias)) @ self.matrix)


class Experts(nn.Module):
    """Experts in three-dimensional weights: all at once by bmm, or one after another by F.linear."""

    def __init__(self, batched: bool) -> None:
        super().__init__()
        self.batched, self.gate, self.head = batched, nn.Linear(16, 4), nn.Linear(16, 5)
        self.up, self.down = nn.Parameter(torch.randn(4, 32, 16) / 4), nn.Parameter(torch.randn(4, 16, 32) / 6)

    def forward(self, x: Tensor) -> Any:
        if self.batched:
            inner = F.relu(torch.bmm(x.expand(4, -1, -1), self.up.mT))
            parts = torch.bmm(inner, self.down.mT)
        else:
            parts = torch.stack([F.linear(F.relu(F.linear(x, self.up[e])), self.down[e]) for e in range(4)])
        return self.head((self.gate(x).softmax(-1).T[..., None] * parts).sum(0))


class Routed(nn.Module):
    """Every row goes to one of four experts; the fifth is never chosen."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.head = nn.Linear(16, 4), nn.Linear(16, 5)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(5))

    def forward(self, x: Tensor) -> Any:
        choice, out = self.router(x).argmax(-1), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            if (rows := choice == number).any():
                out[rows] = expert(x[rows])
        return self.head(x + out)


class Auxiliary(nn.Module):
    """A second head that only runs in training, as in GoogLeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.auxiliary = convnet(), nn.Linear(10, 5), nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Any:
        features = F.relu(self.body(x))
        return (self.head(features), self.auxiliary(features)) if self.training else self.head(features)


class Rebinding(nn.Module):
    """A forward pass that puts new tensors in place of its buffers, one of which the state dict lacks."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = convnet()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Any:
        self.calls = self.calls + 1
        self.scale = x.detach().abs().mean()
        return self.body(x / self.scale)


class Encoder(nn.Module):
    """Words to a TransformerEncoder with a padding mask (which takes PyTorch's fused path in evaluation)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(64, 32), nn.Linear(32, 5)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, words: Tensor, present: Tensor) -> Any:
        return self.head(self.encoder(self.embedding(words), src_key_padding_mask=present == 0)[:, 0])


def pooled(channels: int, *layers: nn.Module, pool: type[nn.Module] = nn.AdaptiveAvgPool2d) -> nn.Module:
    return nn.Sequential(*layers, pool(1), nn.Flatten(), nn.Linear(channels, 10))


def audio() -> nn.Module:
    first = nn.Conv1d(1, 16, 9, stride=4), nn.BatchNorm1d(16), nn.GELU()
    return pooled(32, *first, nn.Conv1d(16, 32, 5, stride=2), nn.BatchNorm1d(32), nn.GELU(), pool=nn.AdaptiveAvgPool1d)


def vocoder() -> nn.Module:
    up, grouped = nn.ConvTranspose1d(32, 16, 8, stride=4, padding=2), nn.ConvTranspose1d(16, 8, 4, stride=2, groups=4)
    return nn.Sequential(nn.Conv1d(16, 32, 3), nn.LeakyReLU(), up, nn.LeakyReLU(), grouped, nn.Conv1d(8, 1, 3))


def volume() -> nn.Module:
    first = nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU()
    return pooled(16, *first, nn.Conv3d(8, 16, 3, stride=2), nn.ReLU(), pool=nn.AdaptiveAvgPool3d)


def separable() -> nn.Module:
    depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU6()
    rest = nn.Conv2d(16, 32, 1), nn.ReLU6(), nn.Conv2d(32, 32, 3, groups=4)
    return pooled(32, nn.Conv2d(3, 16, 3, stride=2), *depthwise, *rest)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def old_weight_norm(convolution: nn.Conv2d) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(convolution)


def masked(convolution: Any) -> Any:
    pruning: Any = prune
    return pruning.l1_unstructured(convolution, "weight", amount=0.5)


def without_compiling(model: nn.Module, batch: Tensor) -> Any:
    with torch.compiler.set_stance("force_eager"):
        return model(batch)


SOURCE_TARGET = together(noise(6, 32), noise(5, 32, seed=1))
ROWS, BF16 = noise(32), torch.bfloat16
GROUPS = functools.partial(nn.GroupNorm, 4)
STATELESS = functools.partial(nn.BatchNorm2d, track_running_stats=False)

HAND = (
    case("hand/MLP", mlp, ROWS),
    case("hand/BatchNorm", convnet, image()),
    case("hand/no norm", lambda: convnet(None), image()),
    case("hand/GroupNorm", lambda: convnet(GROUPS), image()),
    case("hand/InstanceNorm", lambda: convnet(functools.partial(nn.InstanceNorm2d, affine=True)), image()),
    case("hand/BatchNorm without statistics", lambda: convnet(STATELESS), image()),
    case("hand/LayerNorm", lambda: Residual(nn.LayerNorm), ROWS),
    case("hand/RMSNorm", lambda: Residual(nn.RMSNorm), ROWS),
    case("hand/PReLU", lambda: convnet(activation=nn.PReLU), image()),
    case("hand/circular padding", lambda: convnet(padding_mode="circular"), image()),
    case("hand/padding='same'", lambda: convnet(padding="same"), image()),
    case("hand/dilated", lambda: convnet(dilation=2, padding="same"), image()),
    case("hand/depthwise and grouped", separable, image()),
    case("hand/U-Net with ConvTranspose2d", UNet, image()),
    case("hand/1d audio", audio, noise(1, 400)),
    case("hand/1d vocoder with ConvTranspose1d", vocoder, noise(16, 20)),
    case("hand/3d", volume, noise(1, 8, 8, 8)),
    case("hand/two inputs", TwoInputs, together(image(), noise(6))),
    case("hand/dict input", TwoInputs, named(numbers=noise(6), image=image())),
    case("hand/images with labels", convnet, together(image(), tokens(1)), lambda model, batch: model(batch[0])),
    case("hand/tuple output", lambda: Outputs("tuple"), image()),
    case("hand/named tuple output", lambda: Outputs("named"), image()),
    case("hand/dict output", lambda: Outputs("dict"), image()),
    case("hand/convolution called twice", lambda: Repeated(1), image()),
    case("hand/one module, two names", lambda: Repeated(2), image()),
    case("hand/shared embedding and head", lambda: Recurrent(tied=True), tokens()),
    case("hand/LSTM", Recurrent, tokens()),
    case("hand/LSTM, two layers, both ways", lambda: Recurrent(num_layers=2, bidirectional=True), tokens()),
    case("hand/MultiheadAttention", Attention, noise(6, 16)),
    case("hand/TransformerEncoder", Encoder, together(tokens(), mask())),
    case("hand/Transformer", lambda: nn.Transformer(32, 4, 1, 1, 64, batch_first=True), SOURCE_TARGET),
    case("hand/weight used without its layer", Functional, ROWS),
    case("hand/experts by bmm", lambda: Experts(batched=True), noise(16)),
    case("hand/experts by F.linear(x, w[e])", lambda: Experts(batched=False), noise(16)),
    case("hand/routed experts", Routed, noise(16)),
    case("hand/auxiliary head in training", Auxiliary, image()),
    case("hand/forward rebinds a buffer", Rebinding, image()),
    case("hand/weight_norm (old)", lambda: convnet(None, wrap=old_weight_norm), image()),
    case("hand/weight_norm (parametrization)", lambda: convnet(None, wrap=parametrizations.weight_norm), image()),
    case("hand/spectral_norm (parametrization)", lambda: convnet(None, wrap=parametrizations.spectral_norm), image()),
    case("hand/masks of torch.nn.utils.prune", lambda: convnet(None, wrap=masked), image()),
    case("hand/bfloat16", lambda: convnet().to(BF16), noise(3, 32, 32, dtype=BF16)),
    case("hand/float64", lambda: convnet().double(), noise(3, 32, 32, dtype=torch.float64)),
    case("hand/channels last", lambda: convnet().to(memory_format=torch.channels_last), image()),
    case("hand/frozen", lambda: convnet().requires_grad_(False), image()),
    case("hand/DataParallel", lambda: nn.DataParallel(convnet()), image()),
    case(
        "hand/torch.compile (never compiled)",
        lambda: cast(nn.Module, torch.compile(convnet())),
        image(),
        without_compiling,
    ),
    case("hand/traced by fx", lambda: torch.fx.symbolic_trace(convnet()), image()),
)

CASES: tuple[Case, ...] = (*TORCHVISION, *TIMM, *TRANSFORMERS, *HAND)
