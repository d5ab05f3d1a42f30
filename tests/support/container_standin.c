/* A stand-in for NVIDIA Pyxis in the tests, written from its documented options and its observed messages.
 *
 * Pyxis is in no package registry and must match the exact Slurm release, so the tests cannot install it. This
 * plug-in gives srun and sbatch the same container options on real squashfs images: the image is mounted with a
 * writable layer over it, mounts are bound, and the task is put into it with chroot.
 *
 * Left out: importing images by name, named containers, entry points. Needs slurmd to run as root. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

SPANK_PLUGIN(container_standin, 1);

enum { UNSET = -1, MAX_MOUNTS = 256 };

struct mount_entry {
    char *source, *target;
    bool read_only;
};

static struct {
    char *image, *workdir, *env;
    struct mount_entry mounts[MAX_MOUNTS];
    int mount_count;
    int home, writable;
} options = {.home = UNSET, .writable = UNSET};

#define FAIL(...)                 \
    do {                          \
        slurm_error(__VA_ARGS__); \
        return -1;                \
    } while (0)

/* Options */

static int set_once(char **target, const char *value, const char *option) {
    if (value == NULL || *value == '\0')
        FAIL("pyxis: --%s: argument required", option);
    /* Slurm may call twice with the same value, on the submitting side and on the node. */
    if (*target != NULL && strcmp(*target, value) != 0)
        FAIL("pyxis: --%s specified multiple times", option);
    if (*target == NULL)
        *target = strdup(value);
    return 0;
}

static int on_image(int val, const char *arg, int remote) {
    (void)val, (void)remote;
    return set_once(&options.image, arg, "container-image");
}

static int on_workdir(int val, const char *arg, int remote) {
    (void)val, (void)remote;
    return set_once(&options.workdir, arg, "container-workdir");
}

static int on_env(int val, const char *arg, int remote) {
    (void)val, (void)remote;
    if (arg == NULL || *arg == '\0')
        FAIL("pyxis: --container-env: argument required");
    if (*arg == ',' || arg[strlen(arg) - 1] == ',' || strstr(arg, ",,") != NULL)
        FAIL("pyxis: --container-env: invalid format: %s", arg);
    free(options.env);
    options.env = strdup(arg);
    return 0;
}

static bool is_path(const char *text) { return *text == '/' || *text == '.'; }

/* SRC[:DST[:FLAGS]], flags joined with "+"; of these only "ro" is acted upon. */
static int add_mount(char *text) {
    char *rest = strdup(text), *flags;
    char *source = strsep(&rest, ":"), *target = source;
    if (*source == '\0')
        FAIL("pyxis: --container-mounts: invalid format: %s", text);
    if (rest != NULL) {
        target = strsep(&rest, ":");
        if (*target == '\0')
            FAIL("pyxis: --container-mounts: invalid format: %s", text);
    }
    if (!is_path(source)) {
        slurm_error("pyxis: mount source must be a relative path, an absolute path, \"tmpfs\" or \"umount\"");
        FAIL("pyxis: could not add mount entry: %s:%s", source, target);
    }
    if (!is_path(target)) {
        slurm_error("pyxis: mount target must be a relative path or an absolute path");
        FAIL("pyxis: could not add mount entry: %s:%s", source, target);
    }
    if (options.mount_count == MAX_MOUNTS)
        FAIL("pyxis: could not add mount entry: %s:%s", source, target);
    bool read_only = false;
    while ((flags = strsep(&rest, "+")) != NULL)
        read_only |= strcmp(flags, "ro") == 0;
    options.mounts[options.mount_count++] = (struct mount_entry){source, target, read_only};
    return 0;
}

static int on_mounts(int val, const char *arg, int remote) {
    (void)val, (void)remote;
    if (arg == NULL || *arg == '\0')
        FAIL("pyxis: --container-mounts: argument required");
    char *list = strdup(arg), *rest = list, *one;
    int rc = 0;
    options.mount_count = 0;
    while (rc == 0 && (one = strsep(&rest, ",")) != NULL)
        rc = add_mount(one);
    free(list);
    return rc;
}

static int set_switch(int *target, int value, const char *yes, const char *no) {
    if (*target != UNSET && *target != value)
        FAIL("pyxis: both --%s and --%s were specified", yes, no);
    *target = value;
    return 0;
}

static int on_home(int val, const char *arg, int remote) {
    (void)arg, (void)remote;
    return set_switch(&options.home, val, "container-mount-home", "no-container-mount-home");
}

static int on_writable(int val, const char *arg, int remote) {
    (void)arg, (void)remote;
    return set_switch(&options.writable, val, "container-writable", "container-readonly");
}

/* Accepted for their names: tests run as root, images have no entry point. */
static int on_ignored(int val, const char *arg, int remote) {
    (void)val, (void)arg, (void)remote;
    return 0;
}

static struct spank_option table[] = {
    {"container-image", "PATH", "[stand-in] squashfs file of the container", 1, 0, on_image},
    {"container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "[stand-in] bind mounts", 1, 0, on_mounts},
    {"container-workdir", "PATH", "[stand-in] working directory inside the container", 1, 0, on_workdir},
    {"container-env", "NAME[,NAME...]", "[stand-in] variables of the host that win over the image's", 1, 0, on_env},
    {"container-mount-home", NULL, "[stand-in] bind mount the home directory", 0, 1, on_home},
    {"no-container-mount-home", NULL, "[stand-in] do not bind mount the home directory", 0, 0, on_home},
    {"container-writable", NULL, "[stand-in] make the container writable", 0, 1, on_writable},
    {"container-readonly", NULL, "[stand-in] make the container read-only", 0, 0, on_writable},
    {"container-remap-root", NULL, "[stand-in] accepted, ignored", 0, 1, on_ignored},
    {"no-container-remap-root", NULL, "[stand-in] accepted, ignored", 0, 0, on_ignored},
    {"container-entrypoint", NULL, "[stand-in] accepted, ignored", 0, 1, on_ignored},
    {"no-container-entrypoint", NULL, "[stand-in] accepted, ignored", 0, 0, on_ignored},
    SPANK_OPTIONS_TABLE_END,
};

int slurm_spank_init(spank_t sp, int ac, char **av) {
    (void)ac, (void)av;
    for (int i = 0; table[i].name != NULL; i++)
        if (spank_option_register(sp, &table[i]) != ESPANK_SUCCESS)
            return -1;
    return 0;
}

/* The container */

/* Create folder `path` and its parents, or, if not `folder`, an empty file. Whether it worked shows in mount(). */
static void make_target(const char *path, bool folder) {
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *c = copy + 1; *c != '\0'; c++)
        if (*c == '/') {
            *c = '\0';
            mkdir(copy, 0755);
            *c = '/';
        }
    if (folder) {
        mkdir(copy, 0755);
        return;
    }
    int fd = open(copy, O_CREAT | O_RDONLY, 0644);
    if (fd >= 0)
        close(fd);
}

static int run(char *const argv[]) {
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR);
        dup2(null, 2);
        execvp(argv[0], argv);
        _exit(127);
    }
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int creation_failed(const char *reason, const char *image) {
    slurm_error("pyxis: failed to create container filesystem");
    slurm_error("pyxis: printing enroot log file:");
    slurm_error("pyxis:     [ERROR] %s: %s", reason, image);
    FAIL("pyxis: couldn't start container");
}

static int check_image(const char *image) {
    char magic[4];
    struct stat st;
    if (*image != '/' && *image != '.') {
        slurm_error("pyxis: failed to import docker image");
        FAIL("pyxis: couldn't start container (the stand-in does not import images by name: %s)", image);
    }
    if (stat(image, &st) != 0 || !S_ISREG(st.st_mode))
        return creation_failed("No such file or directory", image);
    int fd = open(image, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, magic, sizeof magic);
    if (fd >= 0)
        close(fd);
    if (got != sizeof magic || memcmp(magic, "hsqs", sizeof magic) != 0)
        return creation_failed("Invalid image format", image);
    return 0;
}

static int bind(const char *root, const struct mount_entry *entry) {
    char target[PATH_MAX];
    struct stat st;
    snprintf(target, sizeof target, "%s/%s", root, entry->target);
    bool found = stat(entry->source, &st) == 0;
    if (found)
        make_target(target, S_ISDIR(st.st_mode));
    if (!found || mount(entry->source, target, NULL, MS_BIND | MS_REC, NULL) != 0) {
        int error = errno;
        slurm_error("pyxis: container start failed with error code: 1");
        slurm_error("pyxis: printing enroot log file:");
        slurm_error("pyxis:     enroot-mount: failed to mount: %s at %s: %s", entry->source, target, strerror(error));
        FAIL("pyxis: couldn't start container");
    }
    if (entry->read_only)
        mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
    return 0;
}

/* Real containers get these from Enroot's system configuration. /tmp is the container's own, as there: a path under
 * the host's /tmp is seen only if it was mounted; nor is one under /dev/shm, where the tests have their folders. */
static int bind_system(const char *root) {
    struct mount_entry system[] = {{"/proc", "/proc", false},
                                   {"/sys", "/sys", false},
                                   {"/dev", "/dev", false},
                                   {"/etc/hosts", "/etc/hosts", true},
                                   {"/etc/resolv.conf", "/etc/resolv.conf", true},
                                   {NULL, NULL, false}};
    const char *own[] = {"/tmp", "/dev/shm", NULL};
    char target[PATH_MAX];
    for (int i = 0; system[i].source != NULL; i++)
        if (access(system[i].source, F_OK) == 0 && bind(root, &system[i]) != 0)
            return -1;
    for (int i = 0; own[i] != NULL; i++) {
        snprintf(target, sizeof target, "%s%s", root, own[i]);
        make_target(target, true);
        if (mount("tmpfs", target, "tmpfs", 0, "mode=1777") != 0)
            FAIL("pyxis: couldn't mount %s in the container: %s", own[i], strerror(errno));
    }
    return 0;
}

static bool listed(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

/* The image's variables win over the caller's, except those named by --container-env. */
static void take_image_environment(spank_t sp, const char *root) {
    char path[PATH_MAX], *line = NULL, kept[8192];
    size_t size = 0;
    snprintf(path, sizeof path, "%s/etc/environment", root);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return;
    while (getline(&line, &size, file) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *value = strchr(line, '=');
        if (value == NULL || *line == '#')
            continue;
        *value++ = '\0';
        if (listed(options.env, line) && spank_getenv(sp, line, kept, sizeof kept) == ESPANK_SUCCESS)
            continue;
        spank_setenv(sp, line, value, 1);
    }
    free(line);
    fclose(file);
}

/* Mount the image at <base>/root with a writable layer in memory; `root` receives that path. */
static int mount_image(const char *base, char *root, size_t size) {
    char lower[64], upper[64], work[64], layers[256];
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        FAIL("pyxis: couldn't unshare: %s", strerror(errno));
    mkdir(base, 0755);
    if (mount("tmpfs", base, "tmpfs", 0, NULL) != 0)
        FAIL("pyxis: couldn't mount %s: %s", base, strerror(errno));
    snprintf(lower, sizeof lower, "%s/lower", base);
    snprintf(upper, sizeof upper, "%s/upper", base);
    snprintf(work, sizeof work, "%s/work", base);
    snprintf(root, size, "%s/root", base);
    mkdir(lower, 0755), mkdir(upper, 0755), mkdir(work, 0755), mkdir(root, 0755);
    char *argv[] = {"mount", "-t", "squashfs", "-o", "loop,ro", options.image, lower, NULL};
    if (run(argv) != 0)
        return creation_failed("Failed to mount", options.image);
    snprintf(layers, sizeof layers, "lowerdir=%s,upperdir=%s,workdir=%s", lower, upper, work);
    if (mount("overlay", root, "overlay", 0, layers) != 0)
        FAIL("pyxis: couldn't mount the container's root: %s", strerror(errno));
    return 0;
}

int slurm_spank_task_init_privileged(spank_t sp, int ac, char **av) {
    (void)ac, (void)av;
    if (spank_context() != S_CTX_REMOTE || options.image == NULL)
        return 0;
    char root[64], home[PATH_MAX], submit[PATH_MAX];
    if (check_image(options.image) != 0 || mount_image("/run/container_standin", root, sizeof root) != 0)
        return -1;
    if (bind_system(root) != 0)
        return -1;
    if (options.home == 1 && spank_getenv(sp, "HOME", home, sizeof home) == ESPANK_SUCCESS) {
        struct mount_entry entry = {home, home, false};
        if (bind(root, &entry) != 0)
            return -1;
    }
    for (int i = 0; i < options.mount_count; i++)
        if (bind(root, &options.mounts[i]) != 0)
            return -1;
    take_image_environment(sp, root);
    /* slurmstepd itself changes to the submission folder after this call and complains where there is none. */
    if (spank_getenv(sp, "SLURM_SUBMIT_DIR", submit, sizeof submit) == ESPANK_SUCCESS) {
        char target[PATH_MAX + sizeof root];
        snprintf(target, sizeof target, "%s%s", root, submit);
        make_target(target, true);
    }
    if (options.writable != 1)
        mount(NULL, root, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL);
    if (chroot(root) != 0 || chdir("/") != 0)
        FAIL("pyxis: couldn't chroot: %s", strerror(errno));
    return 0;
}

int slurm_spank_task_init(spank_t sp, int ac, char **av) {
    (void)sp, (void)ac, (void)av;
    if (spank_context() != S_CTX_REMOTE || options.image == NULL)
        return 0;
    const char *folder = options.workdir != NULL ? options.workdir : "/";
    if (chdir(folder) != 0)
        FAIL("pyxis: couldn't chdir to %s: %s", folder, strerror(errno));
    return 0;
}
