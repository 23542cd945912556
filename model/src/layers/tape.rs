//! The operations of [`SageOps`] on Burn's tape: forward on the back end below, backward by its [`SageBackend`].

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::tensor::ops::FloatTensor;

use super::backend::{Activation, SageBackend, SageOps};

#[derive(Debug)]
struct OwnAndMean;

impl<B: SageBackend> Backward<B, 1> for OwnAndMean {
    type State = B::Links;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let links = ops.state;
        unary::<B, _>(ops.parents, ops.node, grads, |gradient| {
            B::own_and_mean_backward(gradient, &links)
        });
    }
}

/// ReLU and dropout need no input on the way back: the output is positive exactly where the gradient passes.
#[derive(Debug)]
struct Activate;

impl<B: SageBackend> Backward<B, 2> for Activate {
    type State = (FloatTensor<B>, Activation);

    fn backward(self, ops: Ops<Self::State, 2>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let (output, activation) = ops.state;
        let [sum, bias] = ops.parents;
        let gradient = B::activate_backward(grads.consume::<B>(&ops.node), output, activation);
        if let Some(bias) = bias {
            grads.register::<B>(bias.id, B::float_sum_dim(gradient.clone(), 0));
        }
        if let Some(sum) = sum {
            grads.register::<B>(sum.id, gradient);
        }
    }
}

impl<B: SageBackend, C: CheckpointStrategy> SageOps for Autodiff<B, C> {
    type Links = B::Links;

    fn own_and_mean(rows: FloatTensor<Self>, links: &Self::Links) -> FloatTensor<Self> {
        let prepared = OwnAndMean.prepare::<C>([rows.node.clone()]).compute_bound().stateful();
        let output = B::own_and_mean(rows.primitive, links);
        match prepared {
            OpsKind::Tracked(prepared) => prepared.finish(links.clone(), output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }

    fn activate(sum: FloatTensor<Self>, bias: FloatTensor<Self>, activation: Activation) -> FloatTensor<Self> {
        let nodes = [sum.node.clone(), bias.node.clone()];
        let prepared = Activate.prepare::<C>(nodes).compute_bound().stateful();
        let output = B::activate(sum.primitive, bias.primitive, activation);
        match prepared {
            OpsKind::Tracked(prepared) => prepared.finish((output.clone(), activation), output),
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        }
    }
}
