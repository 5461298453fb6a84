use keyhead::cpu::{self, Isa};
use keyhead::topk::{Scores, Topk, TopkShape};
fn cpu_s() -> f64 {
    let t = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    t.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1e9
}
fn main() {
    rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global().unwrap();
    let (q, nb, w) = (64usize, 65538usize, 2051usize);
    let mut st = 1u64;
    let mut next = || {
        st = st.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (st >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let scores: Vec<f32> = (0..q * nb).map(|_| next()).collect();

    let mut ids = vec![0; q * w];
    let map = |f: fn(f32) -> f32| scores.iter().map(|&x| f(x)).collect::<Vec<_>>();
    let byb = |f: fn(usize) -> f32| (0..q * nb).map(|i| f(i % nb)).collect::<Vec<_>>();
    let sets = [
        ("random", scores.clone()),
        ("zeros", map(|x| if x < 0.6 { 0.0 } else { x })),
        ("narrow", map(|x| 1.0005 + x * 0.0005)),
        ("equal", vec![1.0; q * nb]),
        ("nan", vec![f32::NAN; q * nb]),
        ("asc", byb(|b| b as f32)),
        ("desc", byb(|b| -(b as f32))),
    ];
    for isa in Isa::available().into_iter().rev() {
        for (name, scores) in &sets {
            for nbb in [65538usize, 33792, 16386, 8194, 2252] {
                if nbb != 65538 && *name != "random" {
                    continue;
                }
                let n_kv = vec![(nbb * 4 - 1) as i32; q];
                let shape = TopkShape::new(q, nbb, w, w).unwrap();
                let scores = &scores[..q * nbb];
                let mut best = f64::MAX;
                for _ in 0..3 {
                    let a = cpu_s();
                    for _ in 0..10 {
                        cpu::topk_with(isa, Topk::new(shape, scores, &n_kv, &mut ids).unwrap()).unwrap();
                    }
                    best = best.min((cpu_s() - a) / 10.0);
                }
                println!("{isa} {name} {nbb} {:.1} us/row", best * 1e6 / q as f64);
            }
        }
        let nb = 16384;
        let (pooled, qi, tail) = (&scores[..nb * 128], &scores[..q * 512], &scores[..128]);
        let n_kv = vec![nb as i32 * 4; q];
        let mut out = vec![0.0; q * (nb + 2)];
        let a = cpu_s();
        for _ in 0..3 {
            cpu::scores_with(isa, Scores::new(nb + 2, pooled, qi, tail, &n_kv, &mut out).unwrap()).unwrap();
        }
        let s = (cpu_s() - a) / 3.0;
        println!(
            "{isa} scores {:.2} ms, {:.1} GFLOP/s a core",
            s * 1e3,
            q as f64 * nb as f64 * 1024.0 / s / 1e9
        );
    }
}
