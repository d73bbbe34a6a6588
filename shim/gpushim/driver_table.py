"""Which of the driver's files belong to which capability of NVIDIA_DRIVER_CAPABILITIES. Data.

Source: libnvidia-container, src/nvc_info.c; the NVIDIA Container Toolkit, pkg/nvcdi and internal/discover.
docs/driver-files.md is made from this file.
"""

# `lib<stem>.so.<version>` → the first capability that it comes with, and more that need it.
LIBRARIES: "dict[str, tuple[str, ...]]" = {
    "nvidia-ml": ("utility",),
    "nvidia-cfg": ("utility",),
    "nvidia-nscq": ("utility",),
    "nvidia-sandboxutils": ("utility",),
    "cuda": ("compute", "video"),
    "cudadebugger": ("compute",),
    "nvidia-opencl": ("compute", "video"),
    "nvidia-gpucomp": ("compute", "video", "graphics", "display"),
    "nvidia-ptxjitcompiler": ("compute", "video"),
    "nvidia-fatbinaryloader": ("compute", "video"),
    "nvidia-allocator": ("compute", "video", "graphics", "display"),
    "nvidia-compiler": ("compute", "video"),
    "nvidia-pkcs11": ("compute",),
    "nvidia-pkcs11-openssl3": ("compute",),
    "nvidia-nvvm": ("compute", "video"),
    "nvidia-nvvm70": ("compute", "video"),
    "nvidia-tileiras": ("compute",),
    "vdpau_nvidia": ("video",),
    "nvidia-encode": ("video",),
    "nvidia-opticalflow": ("video",),
    "nvcuvid": ("video",),
    "nvidia-eglcore": ("graphics", "display"),
    "nvidia-glcore": ("graphics", "display"),
    "nvidia-tls": ("graphics", "display"),
    "nvidia-glsi": ("graphics", "display"),
    "nvidia-fbc": ("graphics", "display"),
    "nvidia-ifr": ("graphics", "display"),
    "nvidia-rtcore": ("graphics", "display"),
    "nvoptix": ("graphics", "display"),
    "GLX_nvidia": ("graphics", "display"),
    "EGL_nvidia": ("graphics", "display"),
    "GLESv2_nvidia": ("graphics", "display"),
    "GLESv1_CM_nvidia": ("graphics", "display"),
    "nvidia-glvkspirv": ("graphics", "display"),
    "nvidia-cbl": ("graphics", "display"),
    "nvidia-vulkan-producer": ("graphics", "display"),
    "nvidia-egl-gbm": ("graphics", "display"),
    "nvidia-egl-wayland": ("graphics", "display"),
    "nvidia-egl-wayland2": ("graphics", "display"),
    "nvidia-ngx": ("ngx",),
}
# A library of a driver newer than this table: whatever needs it does more than utility does.
OTHERS = ("compute", "video", "graphics", "display", "ngx")

# Those that have a version of their own, not the driver's.
OWN_VERSIONS = ("nvidia-nvvm70", "nvidia-egl-gbm", "nvidia-egl-wayland", "nvidia-egl-wayland2")

BINARIES: "dict[str, tuple[str, ...]]" = {
    "nvidia-smi": ("utility",),
    "nvidia-debugdump": ("utility",),
    "nvidia-persistenced": ("utility",),
    "nv-fabricmanager": ("utility",),
    "nvidia-cuda-mps-control": ("compute",),
    "nvidia-cuda-mps-server": ("compute",),
}

# Below /etc, /usr/local/share and /usr/share.
CONFIGURATION: "dict[str, tuple[str, ...]]" = {
    "glvnd/egl_vendor.d/10_nvidia.json": ("graphics", "display"),
    "egl/egl_external_platform.d/15_nvidia_gbm.json": ("graphics", "display"),
    "egl/egl_external_platform.d/10_nvidia_wayland.json": ("graphics", "display"),
    "egl/egl_external_platform.d/09_nvidia_wayland2.json": ("graphics", "display"),
    "nvidia/nvoptix.bin": ("graphics", "display"),
    "X11/xorg.conf.d/10-nvidia.conf": ("display",),
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf": ("display",),
    "vulkan/icd.d/nvidia_icd.json": ("graphics", "display"),
    "vulkan/icd.d/nvidia_icd.x86_64.json": ("graphics", "display"),
    "vulkan/icd.d/nvidia_icd.aarch64.json": ("graphics", "display"),
    "vulkan/icd.d/nvidia_layers.json": ("graphics", "display"),
    "vulkan/implicit_layer.d/nvidia_layers.json": ("graphics", "display"),
    "OpenCL/vendors/nvidia.icd": ("compute",),
}

# Where libraries are looked for below the driver's root, by word size in bits.
DIRECTORIES: "dict[int, tuple[str, ...]]" = {
    64: (
        "/usr/lib64",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu/nvidia/current",
        "/usr/lib/aarch64-linux-gnu/nvidia/current",
        "/lib64",
        "/lib/x86_64-linux-gnu",
        "/lib/aarch64-linux-gnu",
    ),
    32: ("/usr/lib/i386-linux-gnu", "/usr/lib32", "/usr/lib", "/lib/i386-linux-gnu", "/lib32"),
}
PROGRAMS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
SHARES = ("/etc", "/usr/local/share", "/usr/share")
FIRMWARE = ("/lib/firmware/updates", "/lib/firmware")
